#include "torchamp/amp/policy_kernels.h"

#include <algorithm>
#include <array>
#include <functional>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/autocast_mode.h>
#include <ATen/core/List.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>

#include "torchamp/amp/cast_cache.h"
#include "torchamp/base/quiet_warnings.h"

namespace torchamp::amp::detail {
namespace {

// Plain pointers, so that regions in static storage can still end when the thread's other
// thread-local objects are gone.
thread_local std::array<const Rules*, 2> active{};
thread_local CastCache* cache = nullptr;

size_t index_of(c10::DeviceType device_type) { return device_type == c10::kCPU ? 0 : 1; }

bool is_eligible(const at::Tensor& tensor, c10::DeviceType device_type) {
  return at::autocast::is_eligible(tensor, device_type);
}

at::Tensor cast(const at::Tensor& tensor, at::ScalarType dtype, c10::DeviceType device_type,
                bool is_data) {
  if (!is_eligible(tensor, device_type) || tensor.scalar_type() == dtype) {
    return tensor;
  }
  if (dtype == at::kFloat || !at::autocast::is_autocast_cache_enabled()) {
    return tensor.to(dtype);
  }
  if (cache == nullptr) {
    cache = new CastCache;
  }
  return cache->cast(tensor, dtype, /*keep_without_grad=*/!is_data);
}

/// Calls visit(tensor) for every tensor among the op's arguments.
template <typename F>
void for_each_tensor(at::ArrayRef<c10::IValue> arguments, F&& visit) {
  for (const auto& argument : arguments) {
    if (argument.isTensor()) {
      visit(argument.toTensor());
    } else if (argument.isTensorList()) {
      for (const at::Tensor& tensor : argument.toTensorList()) {
        visit(tensor);
      }
    } else if (argument.isList()) {
      for (const c10::IValue& element : argument.toListRef()) {
        if (element.isTensor()) {
          visit(element.toTensor());
        }
      }
    }
  }
}

// Whether an argument carries the batch rather than weights. A frozen weight is worth keeping a
// cast of; a batch without gradient is new each time, and programs write their input buffers in
// ways that no version counter shows.
bool is_data(const c10::OperatorName& op, const std::string& argument) {
  static const std::set<std::string, std::less<>> kNames{"input", "mat1", "batch1", "query", "key",
                                                         "value", "x",    "hx",     "cx"};
  static const std::set<std::string, std::less<>> kOpsWhoseSelfIsABias{
      "aten::addmm", "aten::_addmm_activation", "aten::addbmm", "aten::baddbmm", "aten::addmv",
      "aten::addr"};
  return argument == "self" ? !kOpsWhoseSelfIsABias.contains(op.name) : kNames.contains(argument);
}

// Lists are made anew: the caller may share them.
void cast_arguments(c10::Stack& stack, const std::vector<bool>& data, at::ScalarType dtype,
                    c10::DeviceType device_type) {
  const size_t first = stack.size() - data.size();
  for (size_t i = first; i < stack.size(); ++i) {
    c10::IValue& argument = stack[i];
    const bool is_data = data[i - first];
    if (argument.isTensor()) {
      const at::Tensor& tensor = argument.toTensor();
      if (is_eligible(tensor, device_type) && tensor.scalar_type() != dtype) {
        argument = cast(tensor, dtype, device_type, is_data);
      }
    } else if (argument.isTensorList()) {
      c10::List<at::Tensor> tensors;
      for (const at::Tensor& tensor : argument.toTensorList()) {
        tensors.push_back(cast(tensor, dtype, device_type, is_data));
      }
      argument = std::move(tensors);
    } else if (argument.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> tensors;
      for (const std::optional<at::Tensor> tensor : argument.toOptionalTensorList()) {
        tensors.push_back(tensor.has_value()
                              ? std::optional(cast(*tensor, dtype, device_type, is_data))
                              : std::nullopt);
      }
      argument = std::move(tensors);
    }
  }
}

at::ScalarType widest(at::ArrayRef<c10::IValue> arguments, c10::DeviceType device_type) {
  auto dtype = at::autocast::get_lower_precision_fp_from_device_type(device_type);
  for_each_tensor(arguments, [&](const at::Tensor& tensor) {
    dtype = at::autocast::prioritize(dtype, tensor, device_type);
  });
  return dtype;
}

class PolicyKernel final : public c10::OperatorKernel {
 public:
  PolicyKernel(c10::DeviceType device_type, const c10::OperatorHandle& op, size_t slot)
      : device_type_(device_type),
        key_(at::autocast::get_autocast_dispatch_key_from_device_type(device_type)),
        slot_(slot),
        num_arguments_(op.schema().arguments().size()) {
    if (op.hasKernelForDispatchKey(key_)) {
      before_.emplace(op.getComputedKernelForDispatchKey(key_));
    }
    for (size_t i = 0; i < num_arguments_; ++i) {
      data_.push_back(is_data(op.operator_name(), op.schema().arguments()[i].name()));
      if (op.schema().arguments()[i].name() == "dtype") {
        dtype_argument_ = i;
      }
    }
    const std::string overload = op.operator_name().overload_name;
    if (op.operator_name().name == "aten::norm") {
      with_dtype_ = c10::Dispatcher::singleton().findSchema(
          {"aten::norm", overload == "Scalar" ? "ScalarOpt_dtype" : overload + "_dtype"});
    }
  }

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, c10::Stack* stack) {
    const Rules* rules = active[index_of(device_type_)];
    if (rules == nullptr) {
      call_what_was_before(op, keys, stack);
      return;
    }
    const auto arguments = torch::jit::last(*stack, num_arguments_);
    if (!rules->islands.empty() && is_on_island(*rules, arguments)) {
      call_cast(op, stack, at::kFloat);
      return;
    }
    switch (rules->at(slot_)) {
      case OpRule::kLowerPrecision:
        call_cast(op, stack, at::autocast::get_autocast_dtype(device_type_));
        return;
      case OpRule::kFp32:
        call_cast(op, stack, at::kFloat);
        return;
      case OpRule::kPromote:
        call_cast(op, stack, widest(arguments, device_type_));
        return;
      case OpRule::kDeny: {
        const c10::impl::ExcludeDispatchKeyGuard no_autocast(key_);
        op.callBoxed(stack);
        return;
      }
      case OpRule::kFp32SetOptDtype:
        call_with_dtype_set(op, stack);
        return;
      case OpRule::kFp32AppendDtype:
        call_with_dtype_appended(stack);
        return;
      default:
        call_what_was_before(op, keys, stack);
    }
  }

 private:
  void call_what_was_before(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                            c10::Stack* stack) const {
    if (before_.has_value()) {
      before_->callBoxed(op, keys, stack);
    } else {
      op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, key_), stack);
    }
  }

  void call_cast(const c10::OperatorHandle& op, c10::Stack* stack, at::ScalarType dtype) const {
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(key_);
    cast_arguments(*stack, data_, dtype, device_type_);
    op.callBoxed(stack);
  }

  bool first_is_eligible(const c10::Stack& stack) const {
    const auto& first = stack[stack.size() - num_arguments_];
    return first.isTensor() && is_eligible(first.toTensor(), device_type_);
  }

  void call_with_dtype_set(const c10::OperatorHandle& op, c10::Stack* stack) const {
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(key_);
    if (dtype_argument_.has_value() && first_is_eligible(*stack)) {
      auto& dtype = (*stack)[stack->size() - num_arguments_ + *dtype_argument_];
      if (dtype.isNone()) {
        dtype = at::kFloat;
      }
    }
    op.callBoxed(stack);
  }

  void call_with_dtype_appended(c10::Stack* stack) const {
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(key_);
    const at::Tensor& first = (*stack)[stack->size() - num_arguments_].toTensor();
    stack->emplace_back(is_eligible(first, device_type_) ? at::kFloat : first.scalar_type());
    with_dtype_->callBoxed(stack);
  }

  static bool is_on_island(const Rules& rules, at::ArrayRef<c10::IValue> arguments) {
    bool found = false;
    for_each_tensor(arguments, [&](const at::Tensor& tensor) {
      if (tensor.defined() && !found) {
        found =
            rules.islands.contains(tensor.unsafeGetTensorImpl()) ||
            (tensor.is_view() && rules.islands.contains(tensor._base().unsafeGetTensorImpl())) ||
            is_memory_of_island(rules, tensor);
      }
    });
    return found;
  }

  static bool is_memory_of_island(const Rules& rules, const at::Tensor& tensor) {
    if (!tensor.has_storage()) {
      return false;
    }
    const auto [first, last] =
        rules.island_memory.equal_range(tensor.storage().unsafeGetStorageImpl());
    return std::any_of(first, last, [&tensor](const auto& entry) {
      return entry.second.offset == tensor.storage_offset() && entry.second.numel == tensor.numel();
    });
  }

  c10::DeviceType device_type_;
  c10::DispatchKey key_;
  size_t slot_;
  size_t num_arguments_;
  std::vector<bool> data_;  // for each argument, whether it is_data()
  std::optional<size_t> dtype_argument_;
  std::optional<c10::OperatorHandle> with_dtype_;
  std::optional<c10::SafeKernelFunction> before_;
};

using RegistryKey = std::tuple<c10::DeviceType, std::string, std::string>;

struct Registered {
  size_t slot;
  std::weak_ptr<Registration> registration;
};

}  // namespace

std::shared_ptr<Registration> register_kernel(c10::DeviceType device_type,
                                              const c10::OperatorHandle& op) {
  static std::mutex mutex;
  static std::map<RegistryKey, Registered> registered;
  const auto& name = op.operator_name();
  const std::lock_guard<std::mutex> lock(mutex);
  auto& entry = registered
                    .try_emplace({device_type, name.name, name.overload_name},
                                 Registered{registered.size(), {}})
                    .first->second;
  if (auto alive = entry.registration.lock()) {
    return alive;
  }
  const base::QuietWarnings quiet;  // of an overridden kernel
  auto kernel = c10::KernelFunction::makeFromBoxedFunctor(
      std::make_unique<PolicyKernel>(device_type, op, entry.slot));
  auto handle = c10::Dispatcher::singleton().registerImpl(
      name, at::autocast::get_autocast_dispatch_key_from_device_type(device_type),
      std::move(kernel), std::nullopt, nullptr, "TorchAmp's AutocastPolicy");
  auto registration =
      std::make_shared<Registration>(Registration{entry.slot, op, std::move(handle)});
  entry.registration = registration;
  return registration;
}

bool has_kernels(c10::DeviceType device_type) {
  return device_type == c10::kCPU || device_type == c10::kCUDA;
}

const Rules* active_rules(c10::DeviceType device_type) {
  return has_kernels(device_type) ? active[index_of(device_type)] : nullptr;
}

void set_active_rules(c10::DeviceType device_type, const Rules* rules) {
  if (has_kernels(device_type)) {
    active[index_of(device_type)] = rules;
  }
}

void end_cast_cache() {
  delete cache;
  cache = nullptr;
}

size_t num_kept_casts() { return cache == nullptr ? 0 : cache->size(); }

}  // namespace torchamp::amp::detail
