#pragma once
// FusedOptimizer: what TorchAmp's optimizers share: settings, clipping inside of the step, and the
// one pass that GradScaler calls.

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "torchamp/amp/scaled_step.h"
#include "torchamp/base/export.h"
#include "torchamp/optim/fused_options.h"

namespace torch::optim {
class Optimizer;
}

namespace torchamp::optim {

namespace detail {
class DeviceStep;
struct DeviceList;
struct PlanItem;
class StepPlan;
struct MomentScales;
}  // namespace detail

/// The part of AdamW, Adam, SGD and LAMB that is not a torch::optim::Optimizer.
///
/// A step reads gradients twice: once for the check and the norm (left out when nobody asks for
/// either), once for the update, which multiplies them with 1 / scale and the clip factor on the
/// way. Every tensor that is written has its version raised.
///
/// Dtypes:  f32, f64, bf16, f16, complex64 and complex128 parameters; the gradient of an f32, bf16
///          or f16 parameter may be another of the three. Arithmetic in float32 (f64: double), one
///          rounding at the store.
/// Layouts: any strides of parameter and gradient; sparse gradients in SGD without momentum and
///          weight decay.
/// Devices: CPU, CUDA.
///          On one GPU nothing waits for it; parameters on several devices, or on a GPU in a build
///          without CUDA kernels, take LibTorch's own step.
/// Numbers: the same for every number of threads and every kernel table.
/// Errors:  c10::ValueError naming the parameter, before anything has changed.
class TORCHAMP_API FusedOptimizer : public amp::ScaledStep {
 public:
  const FusedOptions& fused_options() const { return options_; }
  /// Clips to this L2 norm inside of step(), to the same numbers as unscale_() and
  /// torchamp::clip_grad_norm_() before it; nothing: no clipping.
  ///
  /// Errors: c10::ValueError for a negative number or NaN.
  void set_max_grad_norm(std::optional<double> max_grad_norm);
  void set_consume_gradients(bool consume) { options_.consume_gradients = consume; }

  /// The L2 norm of the unscaled gradients that the last step saw, before it clipped: float32
  /// (float64 where one of them is), 0-dim. Undefined before the first step, and where neither a
  /// scaler nor clipping asked for it.
  const at::Tensor& last_grad_norm() const { return last_grad_norm_; }

  /// A moment of `parameter` as a checkpoint holds it: 8-bit ones as float32, others as they are.
  /// `number` tells a parameter's moments apart, 0 to 2; `is_positive`: a second moment.
  at::Tensor saved_moment(const at::Tensor& parameter, const at::Tensor& moment, int number,
                          bool is_positive) const;
  /// A float moment from a checkpoint in the type that this optimizer keeps it in; a new tensor.
  /// Case 44: never the parameter's 16 bits where a master is kept.
  at::Tensor loaded_moment(const at::Tensor& parameter, const at::Tensor& saved, int number,
                           bool is_positive);

  /// Brings the counts of applied steps in the states up to date after steps on a GPU, which are
  /// taken for applied until then; waits for the device. Saving and optimizer_state_dict() do it.
  void sync_state();

  void claim_factors() override;
  bool can_step_scaled() const override;
  Result scaled_step(const Scale& scale) override;

 protected:
  explicit FusedOptimizer(const FusedOptions& options);
  ~FusedOptimizer() override;
  FusedOptimizer(const FusedOptimizer&) = delete;
  FusedOptimizer& operator=(const FusedOptimizer&) = delete;
  FusedOptimizer(FusedOptimizer&&) noexcept;
  FusedOptimizer& operator=(FusedOptimizer&&) noexcept;

  detail::MomentScales& scales() { return *scales_; }

  /// Errors: c10::ValueError for 8-bit moments, whose factors LibTorch's archives have no place
  /// for.
  void refuse_archive() const;

  /// One step without a scale: what step() of a derived optimizer calls after its closure.
  void plain_step();

  /// The optimizer that this is a part of, and its name for messages.
  virtual torch::optim::Optimizer& optimizer() = 0;
  virtual const char* name() const = 0;
  /// Updates parameters and states of the plan's items; makes states that are not there yet.
  virtual void update(detail::StepPlan& plan) = 0;
  /// The same plan for the kernels of a GPU; makes states that are not there yet.
  virtual detail::DeviceList describe(detail::StepPlan& plan) = 0;
  /// The count of applied steps in the state of `parameter` becomes `steps`.
  virtual void set_applied_steps(c10::TensorImpl* parameter, int64_t steps) = 0;
  /// LibTorch's own step, for what the kernels do not take (sparse gradients, other devices).
  virtual void step_by_operators() = 0;
  /// Whether the optimizer takes sparse gradients as its groups are now.
  virtual bool takes_sparse() const { return false; }

 private:
  const torch::optim::Optimizer& optimizer() const {
    return const_cast<FusedOptimizer*>(this)->optimizer();
  }
  void note_norm(const detail::StepPlan& plan, double sum_of_squares);
  void clip(detail::StepPlan& plan) const;
  void refuse_sparse(const detail::StepPlan& plan) const;
  static bool holds_scale(const Scale& scale, const detail::PlanItem& item);
  bool is_fused() const;
  bool is_on_gpu() const;
  void check_capture() const;
  Result step_on_gpu(detail::StepPlan& plan, const Scale* scale);

  // Parameters whose factors this optimizer applies, until it is gone.
  class Claims {
   public:
    Claims() = default;
    ~Claims() { release(); }
    Claims(Claims&&) noexcept = default;
    Claims& operator=(Claims&& other) noexcept;

    void claim(std::vector<at::Tensor> parameters);
    const std::vector<at::Tensor>& parameters() const { return parameters_; }

   private:
    void release() noexcept;
    std::vector<at::Tensor> parameters_;
  };

  FusedOptions options_;
  Claims claims_;
  std::unique_ptr<detail::MomentScales> scales_;
  std::unique_ptr<detail::DeviceStep> device_step_;
  at::Tensor last_grad_norm_;
};

}  // namespace torchamp::optim
