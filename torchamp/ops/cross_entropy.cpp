#include "torchamp/ops/cross_entropy.h"

#include <limits>
#include <utility>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include "torchamp/kernels/convert.h"
#include "torchamp/kernels/cpu/table.h"
#include "torchamp/ops/loss_reduction.h"
#include "torchamp/ops/op_kernel.h"
#include "torchamp/ops/optional_tensor.h"
#include "torchamp/ops/rows.h"

// N rows, C classes

namespace torchamp::ops::detail {
namespace {

struct Settings {
  int64_t reduction;
  int64_t ignore_index;
  double smoothing;
  at::ScalarType loss_dtype;
};

// What has no gradient; autograd takes no undefined tensor as an argument of its own.
struct Constants {
  at::Tensor target_N;
  at::Tensor weight_C;  // float32, or undefined
};

double number_at(const at::Tensor& x_NC, int64_t row, int64_t column) {
  const int64_t index = row * x_NC.stride(0) + column;
  if (x_NC.scalar_type() == at::kFloat) return x_NC.const_data_ptr<float>()[index];
  const uint16_t bits = static_cast<const uint16_t*>(x_NC.const_data_ptr())[index];
  return x_NC.scalar_type() == at::kBFloat16 ? kernels::from_bf16(bits) : kernels::from_f16(bits);
}

kernels::Rows rows_of_logits(const at::Tensor& x_NC) { return rows_of(x_NC, x_NC.stride(0)); }

bool are_targets_in_range(const at::Tensor& target_N, int64_t C, int64_t ignore_index) {
  const int64_t* target = target_N.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < target_N.numel(); ++i) {
    if ((target[i] < 0 || target[i] >= C) && target[i] != ignore_index) return false;
  }
  return true;
}

// The weight of each row's target: 0 where the row is ignored.
std::vector<double> weights_of_rows(const at::Tensor& target_N, const float* weight_C,
                                    int64_t ignore_index) {
  const int64_t* target = target_N.const_data_ptr<int64_t>();
  std::vector<double> weights(static_cast<size_t>(target_N.numel()));
  for (size_t i = 0; i < weights.size(); ++i) {
    if (target[i] == ignore_index) continue;
    weights[i] = weight_C == nullptr ? 1.0 : weight_C[target[i]];
  }
  return weights;
}

double sum_of(const float* weight_C, int64_t C) {
  if (weight_C == nullptr) return static_cast<double>(C);
  double sum = 0.0;
  for (int64_t i = 0; i < C; ++i) sum += weight_C[i];
  return sum;
}

double sum_of(const std::vector<double>& numbers) {
  double sum = 0.0;
  for (const double each : numbers) sum += each;
  return sum;
}

// With p = softmax(x), W = sum(weight) and s = smoothing / C, the loss of a row is
//   weight[t] (1 - smoothing) (log sum exp x - x[t]) + s (W log sum exp x - sum(weight x)).
std::vector<double> losses_of_rows(const at::Tensor& x_NC, const at::Tensor& target_N,
                                   const float* weight_C, const std::vector<double>& weight_of_row,
                                   const Settings& settings, kernels::LogSum* sums) {
  const int64_t N = x_NC.size(0), C = x_NC.size(1);
  const kernels::Rows rows = rows_of_logits(x_NC);
  const kernels::RowKernels& kernel = kernels::cpu_table().rows;
  const bool is_smoothed = settings.smoothing != 0.0;
  std::vector<double> weighted(is_smoothed ? static_cast<size_t>(N) : 0);
  at::parallel_for(0, N, grain_of(C), [&](int64_t begin, int64_t end) {
    kernel.log_sums(rows, C, {begin, end}, sums);
    if (is_smoothed) kernel.weighted_sums(rows, weight_C, C, {begin, end}, weighted.data());
  });
  const int64_t* target = target_N.const_data_ptr<int64_t>();
  const double of_all = is_smoothed ? sum_of(weight_C, C) : 0.0;
  std::vector<double> losses(static_cast<size_t>(N));
  for (int64_t i = 0; i < N; ++i) {
    if (target[i] == settings.ignore_index) continue;
    const double largest = sums[i].largest, log_of_sum = sums[i].log_of_sum;
    const auto row = static_cast<size_t>(i);
    losses[row] = weight_of_row[row] * (1.0 - settings.smoothing) *
                  (largest - number_at(x_NC, i, target[i]) + log_of_sum);
    if (is_smoothed) {
      losses[row] += settings.smoothing / static_cast<double>(C) *
                     (of_all * (largest + log_of_sum) - weighted[row]);
    }
  }
  return losses;
}

class CrossEntropy : public torch::autograd::Function<CrossEntropy> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x_NC,
                            const Constants& constants, const Settings& settings) {
    const auto& [target_N, weight_C] = constants;
    const int64_t N = x_NC.size(0);
    const at::Tensor sums = at::empty({N, 2}, x_NC.options().dtype(at::kFloat));
    const float* weight = numbers_of(weight_C);
    const std::vector<double> weight_of_row =
        weights_of_rows(target_N, weight, settings.ignore_index);
    const std::vector<double> losses =
        losses_of_rows(x_NC, target_N, weight, weight_of_row, settings,
                       reinterpret_cast<kernels::LogSum*>(sums.mutable_data_ptr<float>()));
    context->save_for_backward({x_NC, target_N, weight_C, sums});
    context->saved_data["reduction"] = settings.reduction;
    context->saved_data["ignore_index"] = settings.ignore_index;
    context->saved_data["smoothing"] = settings.smoothing;
    context->saved_data["loss_dtype"] = settings.loss_dtype;

    const bool is_by_row = settings.reduction == at::Reduction::None;
    const at::Tensor loss = at::empty(is_by_row ? at::IntArrayRef(N) : at::IntArrayRef(),
                                      x_NC.options().dtype(at::kFloat));
    auto* to = loss.mutable_data_ptr<float>();
    if (is_by_row) {
      for (size_t i = 0; i < losses.size(); ++i) to[i] = static_cast<float>(losses[i]);
    } else {
      const double divisor =
          settings.reduction == at::Reduction::Mean ? sum_of(weight_of_row) : 1.0;
      *to = static_cast<float>(sum_of(losses) / divisor);
    }
    return loss.to(settings.loss_dtype);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& grads) {
    const torch::autograd::variable_list saved = context->get_saved_variables();
    const Settings settings{context->saved_data["reduction"].toInt(),
                            context->saved_data["ignore_index"].toInt(),
                            context->saved_data["smoothing"].toDouble(),
                            context->saved_data["loss_dtype"].toScalarType()};
    if (!grads[0].defined()) return {{}, {}, {}};
    const at::Tensor grad = at::GradMode::is_enabled()
                                ? with_graph(saved[0], saved[1], saved[2], settings, grads[0])
                                : gradient(saved[0], saved[1], saved[2], saved[3], settings,
                                           grads[0].to(at::kFloat).contiguous());
    return {grad, {}, {}};
  }

 private:
  static at::Tensor gradient(const at::Tensor& x_NC, const at::Tensor& target_N,
                             const at::Tensor& weight_C, const at::Tensor& sums,
                             const Settings& settings, const at::Tensor& grad_of_loss) {
    const int64_t N = x_NC.size(0), C = x_NC.size(1);
    TORCH_CHECK_INDEX(are_targets_in_range(target_N, C, settings.ignore_index),
                      "[cross_entropy_loss] A target is out of range in the backward pass; from 0 "
                      "to ",
                      C - 1, " is accepted. Did another thread change it?");
    const float* weight = numbers_of(weight_C);
    const std::vector<double> weight_of_row =
        weights_of_rows(target_N, weight, settings.ignore_index);
    const int64_t* target = target_N.const_data_ptr<int64_t>();
    const auto* of_loss = grad_of_loss.const_data_ptr<float>();
    const bool is_by_row = settings.reduction == at::Reduction::None;
    const double divisor = settings.reduction == at::Reduction::Mean ? sum_of(weight_of_row) : 1.0;
    const bool is_smoothed = settings.smoothing != 0.0;
    const double of_all = is_smoothed ? sum_of(weight, C) : 0.0;

    std::vector<kernels::CrossEntropyGrad> rows(static_cast<size_t>(N));
    for (int64_t i = 0; i < N; ++i) {
      if (target[i] == settings.ignore_index) continue;
      const auto row = static_cast<size_t>(i);
      const double grad = (is_by_row ? of_loss[i] : *of_loss) / divisor;
      const double of_target = weight_of_row[row] * (1.0 - settings.smoothing) * grad;
      const double of_each = is_smoothed ? settings.smoothing / static_cast<double>(C) * grad : 0.0;
      rows[row] = {static_cast<float>(of_target + of_each * of_all), static_cast<float>(of_each),
                   static_cast<float>(of_target), target[i]};
    }
    at::Tensor out = at::empty_like(x_NC, at::MemoryFormat::Contiguous);
    const kernels::Rows from = rows_of_logits(x_NC), to = rows_of(out, C);
    const auto* log_sums = reinterpret_cast<const kernels::LogSum*>(sums.const_data_ptr<float>());
    const auto kernel = kernels::cpu_table().rows.cross_entropy_backward;
    at::parallel_for(0, N, grain_of(C), [&](int64_t begin, int64_t end) {
      kernel(from, log_sums, rows.data(), weight, to, C, {begin, end});
    });
    return out;
  }

  // By LibTorch's ops, which know their own derivatives.
  static at::Tensor with_graph(const at::Tensor& x_NC, const at::Tensor& target_N,
                               const at::Tensor& weight_C, const Settings& settings,
                               const at::Tensor& grad_of_loss) {
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::DispatchKey::AutocastCPU);
    const std::optional<at::Tensor> weight =
        weight_C.defined() ? std::optional(weight_C.to(settings.loss_dtype)) : std::nullopt;
    const at::Tensor loss =
        CrossEntropyLoss::before
            .call<at::Tensor, const at::Tensor&, const at::Tensor&,
                  const std::optional<at::Tensor>&, int64_t, c10::SymInt, double>(
                c10::DispatchKeySet(c10::DispatchKey::AutogradCPU), x_NC.to(settings.loss_dtype),
                target_N, weight, settings.reduction, settings.ignore_index, settings.smoothing);
    return torch::autograd::grad({loss}, {x_NC}, {grad_of_loss}, /*retain_graph=*/true,
                                 /*create_graph=*/true)[0];
  }
};

// Whether the call is one that CrossEntropy takes. All others, mistakes included, are LibTorch's.
bool is_taken(const at::Tensor& x, const at::Tensor& target,
              const std::optional<at::Tensor>& weight, int64_t reduction,
              const c10::SymInt& ignore_index, double label_smoothing) {
  if (!is_plain_float(x) || x.dim() != 2 || x.numel() == 0 || x.stride(1) != 1 ||
      x._fw_grad(/*level=*/0).defined()) {
    return false;
  }
  if (!is_plain(target) || target.scalar_type() != at::kLong || target.dim() != 1 ||
      target.size(0) != x.size(0) || !target.is_contiguous()) {
    return false;
  }
  if (is_given(weight) && (!is_plain_float(*weight) || weight->dim() != 1 ||
                           weight->size(0) != x.size(1) || weight->requires_grad())) {
    return false;
  }
  const std::optional<int64_t> ignored = ignore_index.maybe_as_int();
  return ignored.has_value() && is_reduction(reduction) && label_smoothing >= 0.0 &&
         label_smoothing <= 1.0 && are_targets_in_range(target, x.size(1), *ignored);
}

at::Tensor compute(const at::Tensor& x, const at::Tensor& target,
                   const std::optional<at::Tensor>& weight, int64_t reduction,
                   const c10::SymInt& ignore_index, double label_smoothing,
                   at::ScalarType loss_dtype) {
  return CrossEntropy::apply(
      x, Constants{target, in_float(weight)},
      Settings{reduction, *ignore_index.maybe_as_int(), label_smoothing, loss_dtype});
}

template <class Kernel>
at::Tensor compute_before(c10::DispatchKeySet keys, const at::Tensor& self,
                          const at::Tensor& target, const std::optional<at::Tensor>& weight,
                          int64_t reduction, c10::SymInt ignore_index, double label_smoothing) {
  return Kernel::before
      .template call<at::Tensor, const at::Tensor&, const at::Tensor&,
                     const std::optional<at::Tensor>&, int64_t, c10::SymInt, double>(
          keys, self, target, weight, reduction, std::move(ignore_index), label_smoothing);
}

}  // namespace

at::Tensor CrossEntropyLoss::call(c10::DispatchKeySet keys, const at::Tensor& self,
                                  const at::Tensor& target, const std::optional<at::Tensor>& weight,
                                  int64_t reduction, c10::SymInt ignore_index,
                                  double label_smoothing) {
  const bool has_other_weight = is_given(weight) && weight->scalar_type() != self.scalar_type();
  if (has_other_weight ||
      !is_taken(self, target, weight, reduction, ignore_index, label_smoothing)) {
    return compute_before<CrossEntropyLoss>(keys, self, target, weight, reduction,
                                            std::move(ignore_index), label_smoothing);
  }
  return compute(self, target, weight, reduction, ignore_index, label_smoothing,
                 self.scalar_type());
}

at::Tensor CrossEntropyUnderAutocast::call(c10::DispatchKeySet keys, const at::Tensor& self,
                                           const at::Tensor& target,
                                           const std::optional<at::Tensor>& weight,
                                           int64_t reduction, c10::SymInt ignore_index,
                                           double label_smoothing) {
  if (!kernels_are_on || self.scalar_type() == at::kFloat ||
      !is_taken(self, target, weight, reduction, ignore_index, label_smoothing)) {
    return compute_before<CrossEntropyUnderAutocast>(keys, self, target, weight, reduction,
                                                     std::move(ignore_index), label_smoothing);
  }
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::DispatchKey::AutocastCPU);
  return compute(self, target, weight, reduction, ignore_index, label_smoothing, at::kFloat);
}

}  // namespace torchamp::ops::detail
