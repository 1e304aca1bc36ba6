#include "torchamp/amp/autocast_policy.h"

#include <algorithm>
#include <array>
#include <set>

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include "torchamp/amp/policy_kernels.h"
#include "torchamp/base/near_names.h"

namespace torchamp::amp {
namespace {

using detail::Rules;

using detail::kAten;
using detail::short_name;

c10::OperatorName full_name(std::string_view op) {
  std::string text(op);
  if (text.find("::") == std::string::npos) {
    text.insert(0, kAten);
  }
  const size_t dot = text.find('.', text.find("::"));
  if (dot == std::string::npos) {
    return {text, ""};
  }
  return {text.substr(0, dot), text.substr(dot + 1)};
}

// Casting an argument that the op writes, or whose memory it hands out, would change its meaning.
bool can_be_cast(const c10::FunctionSchema& schema) {
  const auto aliases = [](const c10::Argument& argument) {
    return argument.alias_info() != nullptr;
  };
  return std::none_of(schema.arguments().begin(), schema.arguments().end(), aliases) &&
         std::none_of(schema.returns().begin(), schema.returns().end(), aliases) &&
         !schema.is_vararg();
}

// The overloads that `op` names, all of them when it has no dot.
std::vector<c10::OperatorHandle> ops_named(std::string_view op) {
  auto& dispatcher = c10::Dispatcher::singleton();
  const c10::OperatorName wanted = full_name(op);
  const bool all_overloads = op.find('.') == std::string_view::npos;
  std::vector<c10::OperatorHandle> found;
  bool exists = false;
  std::vector<std::string> names;
  for (const auto& name : dispatcher.getAllOpNames()) {
    names.push_back(short_name({name.name, ""}));
    if (name.name == wanted.name) {
      names.push_back(short_name(name));
      if (all_overloads || name.overload_name == wanted.overload_name) {
        const auto handle = dispatcher.findSchema(name);
        exists |= handle.has_value();
        if (handle.has_value() && can_be_cast(handle->schema())) {
          found.push_back(*handle);
        }
      }
    }
  }
  if (!exists) {
    const std::string near = base::detail::near_names(short_name(wanted), names);
    TORCH_CHECK_VALUE(false, "[AutocastPolicy] LibTorch has no op named '", op, "'",
                      near.empty() ? "; names are those of the dispatcher, such as 'softmax' or "
                                     "'softmax.int'."
                                   : "; did you mean " + near + "?");
  }
  TORCH_CHECK_VALUE(!found.empty(), "[AutocastPolicy] Op '", op,
                    "' writes to its arguments or returns views of them, so they cannot be cast; "
                    "give the rule to the out-of-place op.");
  return found;
}

void set_rule(Rules& rules, const c10::OperatorHandle& op, OpRule rule) {
  const std::string name = short_name(op.operator_name());
  auto& registration = rules.registrations[name];
  if (registration == nullptr) {
    registration = detail::register_kernel(rules.device_type, op);
  }
  if (rules.by_slot.size() <= registration->slot) {
    rules.by_slot.resize(registration->slot + 1, OpRule::kUnknown);
  }
  rules.by_slot[registration->slot] = rule;
  rules.by_name[name] = rule;
}

// A kernel that changes nothing but is there to see parameters of an island.
void watch(Rules& rules, const c10::OperatorHandle& op) {
  const std::string name = short_name(op.operator_name());
  if (!rules.registrations.contains(name)) {
    rules.registrations[name] = detail::register_kernel(rules.device_type, op);
  }
}

std::shared_ptr<Rules> libtorch_rules(c10::DeviceType device_type) {
  auto rules = std::make_shared<Rules>();
  rules->device_type = device_type;
  rules->by_name = detail::libtorch_rules(device_type);
  auto& dispatcher = c10::Dispatcher::singleton();
  // These cast weights, which the cast cache is for; the others keep LibTorch's kernels.
  for (const auto& [name, rule] : detail::OpRules(rules->by_name)) {
    if (rule == OpRule::kLowerPrecision) {
      if (const auto op = dispatcher.findSchema(full_name(name))) {
        set_rule(*rules, *op, rule);
      }
    }
  }
  return rules;
}

// Ops that take a module's parameters, beside those that are listed for lower precision anyway.
constexpr std::array kParameterOps{"layer_norm",
                                   "native_layer_norm",
                                   "rms_norm",
                                   "group_norm",
                                   "native_group_norm",
                                   "batch_norm",
                                   "native_batch_norm",
                                   "instance_norm",
                                   "bilinear",
                                   "embedding",
                                   "embedding_bag",
                                   "embedding_bag.padding_idx",
                                   "lstm.input",
                                   "lstm.data",
                                   "gru.input",
                                   "gru.data",
                                   "rnn_tanh.input",
                                   "rnn_tanh.data",
                                   "rnn_relu.input",
                                   "rnn_relu.data",
                                   "lstm_cell",
                                   "gru_cell",
                                   "rnn_tanh_cell",
                                   "rnn_relu_cell",
                                   "mul.Tensor",
                                   "add.Tensor",
                                   "sub.Tensor",
                                   "div.Tensor",
                                   "convolution",
                                   "_convolution",
                                   "_prelu_kernel",
                                   "mv",
                                   "dot",
                                   "einsum"};

}  // namespace

AutocastPolicy AutocastPolicy::libtorch(c10::DeviceType device_type) {
  if (!detail::has_kernels(device_type)) {
    return none();
  }
  static const AutocastPolicy cpu{libtorch_rules(c10::kCPU)};
  if (device_type == c10::kCPU) {
    return cpu;
  }
  static const AutocastPolicy cuda{libtorch_rules(c10::kCUDA)};
  return cuda;
}

AutocastPolicy AutocastPolicy::strict(c10::DeviceType device_type) {
  AutocastPolicy start = libtorch(device_type);
  if (device_type != c10::kCPU) {
    return start;
  }
  auto rules = std::make_shared<Rules>(*start.rules_);
  for (const auto& [name, rule] : detail::known_rules(c10::kCUDA)) {
    const auto op = c10::Dispatcher::singleton().findSchema(full_name(name));
    const bool same = start.rule(name) == rule;
    if (op.has_value() && rule != OpRule::kBanned && !same) {
      set_rule(*rules, *op, rule);
    }
  }
  return AutocastPolicy(std::move(rules));
}

AutocastPolicy AutocastPolicy::none() { return AutocastPolicy(nullptr); }

AutocastPolicy AutocastPolicy::with(std::string_view op, OpRule rule) const {
  TORCH_CHECK_VALUE(rules_ != nullptr, "[AutocastPolicy] A rule for '", op,
                    "' was given to the policy none(), which has no kernels; start from "
                    "libtorch() or strict() of a CPU or CUDA device.");
  const auto ops = ops_named(op);
  auto rules = std::make_shared<Rules>(*rules_);
  for (const auto& handle : ops) {
    set_rule(*rules, handle, rule);
  }
  return AutocastPolicy(std::move(rules));
}

AutocastPolicy AutocastPolicy::allow(std::string_view op) const {
  return with(op, OpRule::kLowerPrecision);
}
AutocastPolicy AutocastPolicy::deny(std::string_view op) const { return with(op, OpRule::kDeny); }
AutocastPolicy AutocastPolicy::fp32(std::string_view op) const { return with(op, OpRule::kFp32); }
AutocastPolicy AutocastPolicy::promote(std::string_view op) const {
  return with(op, OpRule::kPromote);
}

AutocastPolicy AutocastPolicy::fp32_modules(const torch::nn::Module& root,
                                            std::string_view pattern) const {
  TORCH_CHECK_VALUE(rules_ != nullptr,
                    "[AutocastPolicy] fp32_modules() was called on the policy none(), which has no "
                    "kernels; start from libtorch() or strict() of a CPU or CUDA device.");
  auto rules = std::make_shared<Rules>(*rules_);
  std::vector<std::string> paths;
  bool found = false;
  for (const auto& item : root.named_modules("", /*include_self=*/false)) {
    paths.push_back(item.key());
    if (!base::detail::matches(pattern, item.key())) {
      continue;
    }
    found = true;
    const auto add = [&rules](const at::Tensor& tensor) {
      if (tensor.defined()) {
        rules->islands.emplace(tensor.unsafeGetTensorImpl(), tensor.getIntrusivePtr());
        if (tensor.has_storage()) {
          rules->island_memory.emplace(
              tensor.storage().unsafeGetStorageImpl(),
              detail::IslandMemory{tensor.storage().getWeakStorageImpl(), tensor.storage_offset(),
                                   tensor.numel()});
        }
      }
    };
    for (const auto& parameter : item.value()->parameters()) {
      add(parameter);
    }
    for (const auto& buffer : item.value()->buffers()) {
      add(buffer);
    }
  }
  if (!found) {
    const std::string near = base::detail::near_names(pattern, paths);
    TORCH_CHECK_VALUE(false, "[AutocastPolicy] No submodule's path matches '", pattern, "'",
                      near.empty() ? "; paths are those of named_modules(), such as "
                                     "'layer4.0.conv1'."
                                   : "; did you mean " + near + "?");
  }
  for (const char* name : kParameterOps) {
    if (const auto op = c10::Dispatcher::singleton().findSchema(full_name(name))) {
      watch(*rules, *op);
    }
  }
  return AutocastPolicy(std::move(rules));
}

OpRule AutocastPolicy::rule(std::string_view op) const {
  if (rules_ == nullptr) {
    return OpRule::kUnknown;
  }
  const auto rule_of = [this](const c10::OperatorName& name) {
    const auto found = rules_->by_name.find(short_name(name));
    return found == rules_->by_name.end() ? OpRule::kFallThrough : found->second;
  };
  const c10::OperatorName name = full_name(op);
  if (c10::Dispatcher::singleton().findSchema(name).has_value()) {
    return rule_of(name);
  }
  std::set<OpRule> rules;
  std::string overloads;
  for (const auto& handle : ops_named(op)) {
    rules.insert(rule_of(handle.operator_name()));
    overloads.append(overloads.empty() ? "" : ", ").append(short_name(handle.operator_name()));
  }
  TORCH_CHECK_VALUE(rules.size() == 1, "[AutocastPolicy] The overloads of '", op,
                    "' have different rules; name one of ", overloads, ".");
  return *rules.begin();
}

std::vector<std::pair<std::string, OpRule>> AutocastPolicy::rules() const {
  if (rules_ == nullptr) {
    return {};
  }
  return {rules_->by_name.begin(), rules_->by_name.end()};
}

c10::DeviceType AutocastPolicy::device_type() const {
  TORCH_CHECK(rules_ != nullptr, "[AutocastPolicy] The policy none() has no device type.");
  return rules_->device_type;
}

const detail::Rules* detail::PolicyAccess::rules(const AutocastPolicy& policy) {
  return policy.rules_.get();
}

AutocastPolicy detail::PolicyAccess::policy(const Rules* rules) {
  return AutocastPolicy(rules == nullptr ? nullptr : rules->shared_from_this());
}

}  // namespace torchamp::amp
