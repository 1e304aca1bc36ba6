#include "torchamp/optim/state.h"

#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <limits>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include <ATen/ops/scalar_tensor.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include "torchamp/base/words.h"
#include "torchamp/optim/fused_optimizer.h"
#include "torchamp/optim/lamb.h"
#include "torchamp/optim/sgd.h"

namespace torchamp::optim {
namespace {

using base::CheckpointError;
using base::Differences;
using base::List;
using base::StateDict;
using base::Tuple;
using base::Value;
using torch::optim::Optimizer;
using torch::optim::OptimizerOptions;
using torch::optim::OptimizerParamGroup;
using torch::optim::OptimizerParamState;

std::string shape_text(const at::Tensor& tensor) {
  std::ostringstream text;
  text << tensor.sizes();
  return text.str();
}

// Where in the file a value stands, and where to note what is wrong with it.
struct Place {
  std::string who;  // "state[3]"
  Differences& differences;
  bool keeps_float = false;  // moments stay as saved: a fused optimizer will choose their type

  std::string name(const char* key) const { return who + "['" + key + "']"; }
  // The value of `key`, or nullptr with a note.
  const Value* find(const StateDict& dict, const char* key) const {
    const Value* value = dict.find(key);
    if (value == nullptr) differences.add(name(key) + " is missing");
    return value;
  }
};

// The least that Python's constructors accept. What a rate falls to at the end of a schedule that
// multiplies (LinearLR) may lie a rounding below 0.
constexpr double kLeastRate = -1e-12;

void require_finite(double value, double least, const std::string& name) {
  if (std::isfinite(value) && value >= least) return;
  std::ostringstream text;
  text << name << " is " << value << ", a finite number" << (std::isfinite(least) ? " from 0" : "")
       << " is expected";
  throw CheckpointError(text.str());
}

// Takes over the value of `key`; leaves the option alone, with a note, where it is missing or one
// that no optimizer can be made with.
void read_into(double& option, const StateDict& dict, const char* key, const Place& place,
               double least = 0.0) {
  const Value* value = place.find(dict, key);
  if (value == nullptr) return;
  place.differences.attempt([&] {
    const double number = value->to_double(place.name(key));
    require_finite(number, least, place.name(key));
    option = number;
  });
}

void read_into(bool& option, const StateDict& dict, const char* key, const Place& place) {
  const Value* value = place.find(dict, key);
  if (value == nullptr) return;
  place.differences.attempt([&] { option = value->to_bool(place.name(key)); });
}

// The present options with what every optimizer has taken over from `dict`.
template <typename Options>
std::unique_ptr<Options> read_shared_options(const StateDict& dict, const OptimizerOptions& present,
                                             const Place& place) {
  auto options = std::make_unique<Options>(static_cast<const Options&>(present));
  read_into(options->lr(), dict, "lr", place, kLeastRate);
  read_into(options->weight_decay(), dict, "weight_decay", place);
  return options;
}

// The tensor of `key` as the optimizer keeps it for `parameter`; a copy.
at::Tensor read_tensor(const StateDict& dict, const char* key, const at::Tensor& parameter,
                       const Place& place) {
  const Value* value = place.find(dict, key);
  if (value == nullptr) return {};
  const auto* tensor = std::get_if<at::Tensor>(&value->storage());
  if (tensor == nullptr || !tensor->defined()) {
    place.differences.add(place.name(key) + " is " + base::with_article(value->type_name()) +
                          ", not a tensor");
    return {};
  }
  const at::Tensor& saved = *tensor;
  if (saved.sizes() != parameter.sizes()) {
    place.differences.add(place.name(key) + " has shape " + shape_text(saved) + ", the parameter " +
                          shape_text(parameter));
    return {};
  }
  if (parameter.is_floating_point() && !saved.is_floating_point()) {
    place.differences.add(place.name(key) + " is of " + c10::toString(saved.scalar_type()) +
                          ", a floating dtype is expected");
    return {};
  }
  const at::ScalarType dtype = place.keeps_float || !parameter.is_floating_point()
                                   ? saved.scalar_type()
                                   : parameter.scalar_type();
  return saved.detach().to(parameter.device(), dtype, /*non_blocking=*/false, /*copy=*/true);
}

int64_t read_step(const StateDict& dict, const Place& place, const char* key = "step") {
  const Value* value = place.find(dict, key);
  if (value == nullptr) return 0;
  double step = 0.0;
  place.differences.attempt([&] { step = value->to_double(place.name(key)); });
  constexpr double kMost = 9007199254740992.0;  // 2^53: beyond, a double skips integers
  if (!(step >= 0 && step <= kMost) || step != std::floor(step)) {
    place.differences.add(place.name(key) + " is " + std::to_string(step) +
                          ", a whole number from 0 is expected");
    return 0;
  }
  return static_cast<int64_t>(step);
}

// Changes one moment or momentum buffer: its number within the parameter, and whether it is a
// second moment.
using ChangeMoment = std::function<at::Tensor(const at::Tensor&, int number, bool is_positive)>;

// What one type of optimizer keeps, and how Python names it.
struct Codec {
  virtual ~Codec() = default;
  virtual const char* name() const = 0;
  virtual StateDict options(const OptimizerOptions& options) const = 0;
  virtual std::unique_ptr<OptimizerOptions> read_options(const StateDict& dict,
                                                         const OptimizerOptions& present,
                                                         const Place& place) const = 0;
  // `saved` gives each tensor as it is to be saved.
  virtual StateDict state(const OptimizerParamState& state, const ChangeMoment& saved) const = 0;
  // Puts `change`'s results into a state that was read.
  virtual void change_moments(OptimizerParamState& state, const ChangeMoment& change) const = 0;
  // Null: no state, as before the first step.
  virtual std::unique_ptr<OptimizerParamState> read_state(const StateDict& dict,
                                                          const at::Tensor& parameter,
                                                          const OptimizerOptions& options,
                                                          const Place& place) const = 0;
};

std::tuple<double, double> read_betas(const StateDict& dict, std::tuple<double, double> present,
                                      const Place& place) {
  const Value* betas = place.find(dict, "betas");
  if (betas == nullptr) return present;
  place.differences.attempt([&] {
    const std::vector<Value>& items = betas->to_items(place.name("betas"));
    if (items.size() != 2) {
      throw CheckpointError(place.name("betas") + " has " + std::to_string(items.size()) +
                            " items, 2 are expected");
    }
    std::array<double, 2> read{};
    for (size_t i = 0; i < read.size(); ++i) {
      const std::string name = place.name("betas") + "[" + std::to_string(i) + "]";
      read[i] = items[i].to_double(name);
      if (read[i] >= 0.0 && read[i] < 1.0) continue;
      std::ostringstream text;
      text << name << " is " << read[i] << ", 0 to below 1 is expected";
      throw CheckpointError(text.str());
    }
    present = {read[0], read[1]};
  });
  return present;
}

// The states of Adam, AdamW and LAMB.
template <typename State>
struct MomentsCodec : Codec {
  // Whether the options ask for the largest second moments, too.
  virtual bool has_largest(const OptimizerOptions& /*options*/) const { return false; }

  StateDict state(const OptimizerParamState& base, const ChangeMoment& saved) const override {
    const auto& state = static_cast<const State&>(base);
    StateDict dict;
    dict.set("step", at::scalar_tensor(static_cast<double>(state.step()), at::kFloat));
    dict.set("exp_avg", saved(state.exp_avg(), 0, false));
    dict.set("exp_avg_sq", saved(state.exp_avg_sq(), 1, true));
    if (state.max_exp_avg_sq().defined()) {
      dict.set("max_exp_avg_sq", saved(state.max_exp_avg_sq(), 2, true));
    }
    return dict;
  }

  void change_moments(OptimizerParamState& base, const ChangeMoment& change) const override {
    auto& state = static_cast<State&>(base);
    state.exp_avg(change(state.exp_avg(), 0, false));
    state.exp_avg_sq(change(state.exp_avg_sq(), 1, true));
    if (state.max_exp_avg_sq().defined()) {
      state.max_exp_avg_sq(change(state.max_exp_avg_sq(), 2, true));
    }
  }

  std::unique_ptr<OptimizerParamState> read_state(const StateDict& dict,
                                                  const at::Tensor& parameter,
                                                  const OptimizerOptions& options,
                                                  const Place& place) const override {
    if (dict.empty()) return nullptr;
    auto state = std::make_unique<State>();
    state->step(read_step(dict, place));
    state->exp_avg(read_tensor(dict, "exp_avg", parameter, place));
    state->exp_avg_sq(read_tensor(dict, "exp_avg_sq", parameter, place));
    if (has_largest(options)) {
      state->max_exp_avg_sq(read_tensor(dict, "max_exp_avg_sq", parameter, place));
    }
    return state;
  }
};

// Adam and AdamW differ in one key.
template <typename Options, typename State>
struct AdamCodec final : MomentsCodec<State> {
  static constexpr bool kIsDecoupled = std::is_same_v<Options, torch::optim::AdamWOptions>;

  const char* name() const override { return kIsDecoupled ? "AdamW" : "Adam"; }

  StateDict options(const OptimizerOptions& base) const override {
    const auto& options = static_cast<const Options&>(base);
    StateDict dict;
    dict.set("lr", options.lr());
    dict.set("betas", Tuple{{std::get<0>(options.betas()), std::get<1>(options.betas())}});
    dict.set("eps", options.eps());
    dict.set("weight_decay", options.weight_decay());
    dict.set("amsgrad", options.amsgrad());
    dict.set("maximize", false);
    dict.set("foreach", Value());
    dict.set("capturable", false);
    dict.set("differentiable", false);
    dict.set("fused", Value());
    dict.set("decoupled_weight_decay", kIsDecoupled);
    return dict;
  }

  std::unique_ptr<OptimizerOptions> read_options(const StateDict& dict,
                                                 const OptimizerOptions& present,
                                                 const Place& place) const override {
    auto options = read_shared_options<Options>(dict, present, place);
    read_into(options->eps(), dict, "eps", place);
    read_into(options->amsgrad(), dict, "amsgrad", place);
    options->betas(read_betas(dict, options->betas(), place));
    return options;
  }

  bool has_largest(const OptimizerOptions& options) const override {
    return static_cast<const Options&>(options).amsgrad();
  }
};

struct SgdCodec final : Codec {
  using Options = torch::optim::SGDOptions;
  using State = torch::optim::SGDParamState;

  const char* name() const override { return "SGD"; }

  StateDict options(const OptimizerOptions& base) const override {
    const auto& options = static_cast<const Options&>(base);
    StateDict dict;
    dict.set("lr", options.lr());
    dict.set("momentum", options.momentum());
    dict.set("dampening", options.dampening());
    dict.set("weight_decay", options.weight_decay());
    dict.set("nesterov", options.nesterov());
    dict.set("maximize", false);
    dict.set("foreach", Value());
    dict.set("differentiable", false);
    dict.set("fused", Value());
    return dict;
  }

  std::unique_ptr<OptimizerOptions> read_options(const StateDict& dict,
                                                 const OptimizerOptions& present,
                                                 const Place& place) const override {
    auto options = read_shared_options<Options>(dict, present, place);
    read_into(options->momentum(), dict, "momentum", place);
    read_into(options->dampening(), dict, "dampening", place,
              -std::numeric_limits<double>::infinity());
    read_into(options->nesterov(), dict, "nesterov", place);
    return options;
  }

  StateDict state(const OptimizerParamState& base, const ChangeMoment& saved) const override {
    const at::Tensor& buffer = static_cast<const State&>(base).momentum_buffer();
    StateDict dict;
    dict.set("momentum_buffer", buffer.defined() ? Value(saved(buffer, 0, false)) : Value());
    return dict;
  }

  void change_moments(OptimizerParamState& base, const ChangeMoment& change) const override {
    auto& state = static_cast<State&>(base);
    state.momentum_buffer(change(state.momentum_buffer(), 0, false));
  }

  std::unique_ptr<OptimizerParamState> read_state(const StateDict& dict,
                                                  const at::Tensor& parameter,
                                                  const OptimizerOptions& /*options*/,
                                                  const Place& place) const override {
    const Value* buffer = dict.empty() ? nullptr : place.find(dict, "momentum_buffer");
    if (buffer == nullptr || buffer->is_none()) return nullptr;
    auto state = std::make_unique<State>();
    state->momentum_buffer(read_tensor(dict, "momentum_buffer", parameter, place));
    return state;
  }
};

// LAMB has no optimizer in Python's torch; the keys are those of Adam.
struct LambCodec final : MomentsCodec<torch::optim::AdamWParamState> {
  using Options = LAMBOptions;

  const char* name() const override { return "LAMB"; }

  StateDict options(const OptimizerOptions& base) const override {
    const auto& options = static_cast<const Options&>(base);
    StateDict dict;
    dict.set("lr", options.lr());
    dict.set("betas", Tuple{{std::get<0>(options.betas()), std::get<1>(options.betas())}});
    dict.set("eps", options.eps());
    dict.set("weight_decay", options.weight_decay());
    dict.set("bias_correction", true);
    return dict;
  }

  std::unique_ptr<OptimizerOptions> read_options(const StateDict& dict,
                                                 const OptimizerOptions& present,
                                                 const Place& place) const override {
    auto options = read_shared_options<Options>(dict, present, place);
    read_into(options->eps(), dict, "eps", place);
    options->betas(read_betas(dict, options->betas(), place));
    return options;
  }
};

const Codec* find_codec(const Optimizer& optimizer) {
  static const AdamCodec<torch::optim::AdamWOptions, torch::optim::AdamWParamState> adamw;
  static const AdamCodec<torch::optim::AdamOptions, torch::optim::AdamParamState> adam;
  static const SgdCodec sgd;
  static const LambCodec lamb;
  if (dynamic_cast<const torch::optim::AdamW*>(&optimizer) != nullptr) return &adamw;
  if (dynamic_cast<const torch::optim::Adam*>(&optimizer) != nullptr) return &adam;
  if (dynamic_cast<const torch::optim::SGD*>(&optimizer) != nullptr) return &sgd;
  if (dynamic_cast<const LAMB*>(&optimizer) != nullptr) return &lamb;
  return nullptr;
}

const Codec& codec_of(const Optimizer& optimizer, const char* who) {
  if (const Codec* codec = find_codec(optimizer)) return *codec;
  throw CheckpointError(
      std::string("[") + who +
      "] the optimizer is of an unknown type; torch::optim::AdamW, Adam and SGD "
      "and torchamp::optim's are accepted. Is it your own? Save its state yourself.");
}

// Which optimizer wrote this group, by the keys that it alone has; "" when they do not tell (Adam
// and AdamW before PyTorch 2.7).
std::string writer_of(const StateDict& group) {
  for (const auto& [key, writer] :
       std::initializer_list<std::pair<const char*, const char*>>{{"lambd", "ASGD"},
                                                                  {"alpha", "RMSprop"},
                                                                  {"rho", "Adadelta"},
                                                                  {"lr_decay", "Adagrad"},
                                                                  {"etas", "Rprop"},
                                                                  {"max_iter", "LBFGS"},
                                                                  {"ns_steps", "Muon"},
                                                                  {"momentum_decay", "NAdam"},
                                                                  {"momentum", "SGD"},
                                                                  {"bias_correction", "LAMB"}}) {
    if (group.contains(key)) return writer;
  }
  if (!group.contains("betas")) return "another optimizer";
  const Value* is_decoupled = group.find("decoupled_weight_decay");
  if (!group.contains("amsgrad")) {
    return is_decoupled != nullptr        ? "RAdam"
           : group.contains("capturable") ? "Adamax"
                                          : "another optimizer";
  }
  if (is_decoupled == nullptr) return "";
  return is_decoupled->to_bool("'decoupled_weight_decay'") ? "AdamW" : "Adam";
}

// One group of the file against one of the optimizer: parameter by its number in the file.
void match_parameters(const StateDict& saved, const OptimizerParamGroup& group,
                      const std::string& who, Differences& differences,
                      std::map<int64_t, const at::Tensor*>& by_number) {
  const Value* value = saved.find("params");
  if (value == nullptr) {
    differences.add(who + "['params'] is missing");
    return;
  }
  const std::vector<Value>& numbers = value->to_items(who + "['params']");
  if (numbers.size() != group.params().size()) {
    differences.add(who + " has " + std::to_string(numbers.size()) + " parameters, the optimizer " +
                    std::to_string(group.params().size()));
    return;
  }
  for (size_t i = 0; i < numbers.size(); ++i) {
    const int64_t number = numbers[i].to_int(who + "['params'][" + std::to_string(i) + "]");
    if (!by_number.emplace(number, &group.params()[i]).second) {
      differences.add(who + " names parameter " + std::to_string(number) + " a second time");
    }
  }
}

size_t num_of(const std::vector<OptimizerParamGroup>& groups) {
  size_t count = 0;
  for (const OptimizerParamGroup& group : groups) count += group.params().size();
  return count;
}

}  // namespace

StateDict optimizer_state_dict(const Optimizer& optimizer) {
  const Codec& codec = codec_of(optimizer, "optimizer_state_dict");
  if (const auto* fused = dynamic_cast<const FusedOptimizer*>(&optimizer)) {
    const_cast<FusedOptimizer*>(fused)->sync_state();  // counts of steps that live on a GPU
  }
  const auto* fused = dynamic_cast<const FusedOptimizer*>(&optimizer);
  const auto* sgd = dynamic_cast<const SGD*>(&optimizer);
  StateDict state;
  List groups;
  int64_t number = 0;
  for (const OptimizerParamGroup& group : optimizer.param_groups()) {
    List numbers;
    for (const at::Tensor& parameter : group.params()) {
      const auto it = optimizer.state().find(parameter.unsafeGetTensorImpl());
      if (it != optimizer.state().end()) {
        const auto saved = [&](const at::Tensor& moment, int which, bool is_positive) {
          return fused ? fused->saved_moment(parameter, moment, which, is_positive) : moment;
        };
        state.set(number, codec.state(*it->second, saved));
      }
      numbers.items.emplace_back(number++);
    }
    StateDict saved = codec.options(group.options());
    if (sgd != nullptr && sgd->rounds_by_chance()) saved.set("num_steps", sgd->num_steps());
    saved.set("params", std::move(numbers));
    groups.items.emplace_back(std::move(saved));
  }
  StateDict result;
  result.set("state", std::move(state));
  result.set("param_groups", std::move(groups));
  return result;
}

namespace {

using Groups = std::vector<std::unique_ptr<OptimizerOptions>>;
using States = std::vector<std::pair<at::Tensor, std::unique_ptr<OptimizerParamState>>>;

// What was read of a state_dict, in the form that the optimizer keeps.
struct Read {
  Groups options;
  int64_t num_steps = 0;
  States states;
  std::map<int64_t, const at::Tensor*> by_number;
  std::map<const at::Tensor*, const OptimizerOptions*> options_of;
};

void read_group(const Value& value, const OptimizerParamGroup& group, const std::string& who,
                const Codec& codec, Differences& differences, Read& read) {
  const StateDict& saved = value.to_dict(who);
  if (const std::string writer = writer_of(saved); !writer.empty() && writer != codec.name()) {
    differences.add(who + " is of " + writer + ", the optimizer is " + codec.name());
    return;
  }
  if (const Value* maximize = saved.find("maximize");
      maximize != nullptr && maximize->to_bool(who + "['maximize']")) {
    differences.add(who + "['maximize'] is True, LibTorch's C++ optimizers only minimize");
  }
  read.options.push_back(codec.read_options(saved, group.options(), {who, differences}));
  if (saved.contains("num_steps")) {
    read.num_steps = read_step(saved, {who, differences}, "num_steps");
  }
  match_parameters(saved, group, who, differences, read.by_number);
  for (const at::Tensor& parameter : group.params()) {
    read.options_of.emplace(&parameter, read.options.back().get());
  }
}

void read_states(const StateDict& saved, const Codec& codec, bool keeps_float,
                 Differences& differences, Read& read) {
  for (const auto& [key, value] : saved.entries()) {
    const std::string who = "state[" + base::to_string(key) + "]";
    const auto* number = std::get_if<int64_t>(&key);
    const auto it = number == nullptr ? read.by_number.end() : read.by_number.find(*number);
    if (it == read.by_number.end()) {
      differences.add(who + " belongs to no parameter of param_groups");
      continue;
    }
    const at::Tensor& parameter = *it->second;
    const auto* dict = std::get_if<StateDict>(&value.storage());
    if (dict == nullptr) {
      differences.add(who + " is " + base::with_article(value.type_name()) + ", not a dict");
      continue;
    }
    auto state = codec.read_state(*dict, parameter, *read.options_of.at(&parameter),
                                  {who, differences, keeps_float});
    if (state) read.states.emplace_back(parameter, std::move(state));
  }
}

void apply(Optimizer& optimizer, const Codec& codec, Read& read) {
  auto* fused = dynamic_cast<FusedOptimizer*>(&optimizer);
  if (auto* sgd = dynamic_cast<SGD*>(&optimizer)) sgd->set_num_steps(read.num_steps);
  std::vector<OptimizerParamGroup>& groups = optimizer.param_groups();
  for (size_t i = 0; i < groups.size(); ++i) {
    groups[i].set_options(std::move(read.options[i]));
    for (const at::Tensor& parameter : groups[i].params()) {
      optimizer.state().erase(parameter.unsafeGetTensorImpl());
    }
  }
  for (auto& [parameter, state] : read.states) {
    if (fused != nullptr) {
      codec.change_moments(*state, [&, parameter = parameter](const at::Tensor& saved, int number,
                                                              bool is_positive) {
        return fused->loaded_moment(parameter, saved, number, is_positive);
      });
    }
    optimizer.state()[parameter.unsafeGetTensorImpl()] = std::move(state);
  }
}

}  // namespace

base::Loading prepare_optimizer_state_dict(Optimizer& optimizer, const StateDict& dict) {
  const Codec& codec = codec_of(optimizer, "load_optimizer_state_dict");
  base::Loading loading;
  Differences& differences = loading.differences;
  const auto read = std::make_shared<Read>();
  differences.attempt([&] {
    const std::vector<Value>& saved_groups = dict.at("param_groups").to_items("'param_groups'");
    const StateDict& saved_state = dict.at("state").to_dict("'state'");
    const std::vector<OptimizerParamGroup>& groups = optimizer.param_groups();
    if (saved_groups.size() != groups.size()) {
      differences.add("the state has " + std::to_string(saved_groups.size()) +
                      " parameter groups, the optimizer " + std::to_string(groups.size()));
      return;
    }
    for (size_t i = 0; i < groups.size(); ++i) {
      differences.attempt([&] {
        read_group(saved_groups[i], groups[i], "param_groups[" + std::to_string(i) + "]", codec,
                   differences, *read);
      });
    }
    // Without the parameters' numbers nothing can be said of their states.
    if (read->options.size() == groups.size() && read->by_number.size() == num_of(groups)) {
      const bool keeps_float = dynamic_cast<FusedOptimizer*>(&optimizer) != nullptr;
      read_states(saved_state, codec, keeps_float, differences, *read);
    }
  });
  loading.apply = [&optimizer, &codec, read] { apply(optimizer, codec, *read); };
  return loading;
}

void load_optimizer_state_dict(Optimizer& optimizer, const StateDict& dict) {
  const base::Loading loading = prepare_optimizer_state_dict(optimizer, dict);
  const size_t count = loading.differences.count();
  base::take_over(loading,
                  "[load_optimizer_state_dict] the state does not fit this optimizer (" +
                      base::counted(count, "difference") + "): ",
                  std::string(". Was it saved by another optimizer than ") +
                      codec_of(optimizer, "load_optimizer_state_dict").name() +
                      ", or for another model?");
}

}  // namespace torchamp::optim
