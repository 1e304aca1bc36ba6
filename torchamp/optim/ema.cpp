#include "torchamp/optim/ema.h"

#include <algorithm>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_lerp.h>
#include <ATen/ops/full.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/where.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include "torchamp/base/error.h"
#include "torchamp/optim/low_precision.h"
#include "torchamp/optim/named_tensors.h"

namespace torchamp::optim {
namespace {

// The dtype of an average: wide enough that small steps are not lost.
at::ScalarType average_dtype(at::ScalarType dtype) {
  if (dtype == at::kDouble || dtype == at::kComplexDouble) return dtype;
  return c10::isComplexType(dtype) ? at::kComplexFloat : at::kFloat;
}

bool is_averaged(const at::Tensor& tensor) {
  return c10::isFloatingType(tensor.scalar_type()) || c10::isComplexType(tensor.scalar_type());
}

at::TensorOptions average_options(const at::Tensor& tensor) {
  return tensor.options().dtype(average_dtype(tensor.scalar_type())).requires_grad(false);
}

// The exact value of a parameter in the average's dtype; the parameter itself where it is that.
at::Tensor exact_value(const at::Tensor& tensor) {
  return full_precision(tensor).to(average_dtype(tensor.scalar_type()));
}
void set_exact_value(const at::Tensor& tensor, const at::Tensor& value) {
  set_full_precision(tensor, value);
}

std::string key_of(const std::string& name) { return "module." + name; }

}  // namespace

Ema::Ema(const torch::nn::Module& module, EmaOptions options) : options_(options) {
  TORCH_CHECK_VALUE(options_.decay >= 0.0 && options_.decay <= 1.0, "[Ema] decay is ",
                    options_.decay, "; 0 to 1 is accepted.");
  const at::NoGradGuard no_grad;
  add(module, "");
}

void Ema::add(const torch::nn::Module& module, const std::string& prefix) {
  const auto add_one = [this](const std::string& name, const at::Tensor& tensor, bool is_buffer) {
    if ((is_buffer && !options_.use_buffers) || !is_averaged(tensor)) {
      names_.push_back({name, -1, tensor});
      return;
    }
    const auto known = std::find_if(
        averages_.begin(), averages_.end(),
        [&](const Average& average) { return average.tensor.is_same(tensor); });  // tied weights
    names_.push_back({name, known - averages_.begin(), tensor});
    if (known == averages_.end()) averages_.push_back({tensor, exact_value(tensor).clone(), {}});
  };
  detail::for_each_tensor(module, add_one, prefix);
}

void Ema::check_not_swapped_in(const char* who) const {
  TORCH_CHECK(!is_swapped_in_, "[Ema] ", who,
              "() was called while averaged weights are in the module; call swap_out() before, or "
              "end the EmaWeights. Is the step inside of the validation's scope?");
}

// Module::to() gave a parameter another device or dtype.
void Ema::follow_moves() {
  for (Average& average : averages_) {
    const at::TensorOptions options = average_options(average.tensor);
    if (average.value.device() != options.device() ||
        average.value.scalar_type() != c10::typeMetaToScalarType(options.dtype())) {
      average.value = average.value.to(options);
    }
    TORCH_CHECK_VALUE(average.value.sizes() == average.tensor.sizes(),
                      "[Ema] A parameter has the shape ", average.tensor.sizes(), " now and had ",
                      average.value.sizes(),
                      " when the average began; the same shape is accepted. Make a new Ema.");
  }
}

double Ema::weight_of_update(int64_t n) const {
  if (n == 0) return 1.0;
  if (!options_.warmup) return 1.0 - options_.decay;
  const auto count = static_cast<double>(n);
  return 1.0 - std::min(options_.decay, (1.0 + count) / (10.0 + count));
}

// average <- average + weight (value - average), as Python's lerp orders it.
void Ema::move_towards(const at::Tensor& weight_on_device, double weight) {
  std::vector<at::Tensor> values, targets;  // in one call: weights that are averages' dtype
  for (Average& average : averages_) {
    const at::Tensor target = exact_value(average.tensor);
    if (weight_on_device.defined()) {
      average.value.lerp_(target, weight_on_device.to(average.value.options()));
    } else if (weight == 1.0) {
      average.value.copy_(target);
    } else if (target.scalar_type() != average.tensor.scalar_type()) {
      average.value.lerp_(target, weight);  // its float32 copy is gone before the next one
    } else {
      values.push_back(average.value);
      targets.push_back(target);
    }
  }
  if (!values.empty()) at::_foreach_lerp_(values, targets, weight);
}

void Ema::update() {
  check_not_swapped_in("update");
  if (more_averaged_.defined() && (n_averaged_ == 0 || options_.warmup)) {
    // How many there were is known on the device alone.
    update_unless(at::full({}, 0.0F, more_averaged_.options().dtype(at::kFloat)));
    return;
  }
  const at::NoGradGuard no_grad;
  follow_moves();
  move_towards({}, weight_of_update(n_averaged_));
  ++n_averaged_;
}

void Ema::update_unless(const at::Tensor& found_inf) {
  check_not_swapped_in("update_unless");
  TORCH_CHECK_VALUE(found_inf.defined() && found_inf.numel() == 1, "[Ema] found_inf is ",
                    found_inf.defined() ? "of several elements" : "undefined",
                    "; a tensor of one element is accepted, not 0 when the step was skipped.");
  const at::NoGradGuard no_grad;
  follow_moves();
  const at::Tensor applied = (found_inf.detach().reshape({}) == 0).to(at::kDouble);
  if (!more_averaged_.defined()) more_averaged_ = at::full({}, 0.0, applied.options());
  more_averaged_ = more_averaged_.to(applied.device());
  const at::Tensor n = more_averaged_ + static_cast<double>(n_averaged_);
  at::Tensor weight = at::full({}, 1.0 - options_.decay, applied.options());
  if (options_.warmup) {
    weight = 1.0 - at::minimum((1.0 + n) / (10.0 + n), at::full({}, options_.decay, n.options()));
  }
  weight = at::where(n == 0, at::full({}, 1.0, applied.options()), weight) * applied;
  move_towards(weight, 0.0);
  more_averaged_ = more_averaged_ + applied;
}

int64_t Ema::n_averaged() const {
  if (more_averaged_.defined()) {
    n_averaged_ += static_cast<int64_t>(more_averaged_.item<double>());
    more_averaged_ = at::Tensor();
  }
  return n_averaged_;
}

void Ema::swap_in() {
  TORCH_CHECK(!is_swapped_in_, "[Ema] swap_in() was called twice; call swap_out() in between.");
  const at::NoGradGuard no_grad;
  follow_moves();
  for (Average& average : averages_) {
    const at::Tensor exact = exact_value(average.tensor);
    average.kept = exact.is_alias_of(average.tensor) ? exact.clone() : exact;
  }
  for (Average& average : averages_) set_exact_value(average.tensor, average.value);
  is_swapped_in_ = true;
}

void Ema::swap_out() {
  TORCH_CHECK(is_swapped_in_,
              "[Ema] swap_out() was called, but the averages are not in the "
              "module; call swap_in() before.");
  const at::NoGradGuard no_grad;
  for (Average& average : averages_) {
    set_exact_value(average.tensor, average.kept);
    average.kept = at::Tensor();
  }
  is_swapped_in_ = false;
}

base::StateDict Ema::state_dict() const {
  base::StateDict dict;
  dict.set("n_averaged", at::scalar_tensor(n_averaged(), at::TensorOptions(at::kLong)));
  for (const Name& name : names_) {
    dict.set(key_of(name.name), name.average < 0
                                    ? name.tensor.detach()
                                    : averages_[static_cast<size_t>(name.average)].value);
  }
  return dict;
}

void Ema::reset() {
  check_not_swapped_in("reset");
  const at::NoGradGuard no_grad;
  follow_moves();
  move_towards({}, 1.0);
  n_averaged_ = 0;
  more_averaged_ = at::Tensor();
}

base::Loading Ema::prepare_load(const base::StateDict& dict) {
  check_not_swapped_in("load_state_dict");
  detail::NamedCopies named(dict);
  named.allow("n_averaged");
  for (const Name& name : names_) {
    const std::string key = key_of(name.name);
    if (name.average < 0) {
      named.allow(key);
    } else {
      named.expect(key, averages_[static_cast<size_t>(name.average)].value);
    }
  }
  base::Loading loading;
  named.report(loading.differences);
  int64_t n_averaged = 0;
  loading.differences.attempt([&] {
    n_averaged = dict.at("n_averaged").to_int("'n_averaged'");
    if (n_averaged < 0) {
      throw base::CheckpointError("'n_averaged' is " + std::to_string(n_averaged) +
                                  ", 0 or more is expected");
    }
  });
  loading.apply = [this, copies = named.copies(), n_averaged] {
    const at::NoGradGuard no_grad;
    for (const auto& [from, to] : copies) to.copy_(from);
    n_averaged_ = n_averaged;
    more_averaged_ = at::Tensor();
  };
  return loading;
}

void Ema::load_state_dict(const base::StateDict& dict) {
  base::take_over(prepare_load(dict), "[Ema] The averages do not fit this module: ",
                  "; those of the same module are accepted. Was the model changed?");
}

}  // namespace torchamp::optim
