#pragma once
// DeviceStep: the plan of a fused step handed to the kernels of a GPU, and the counts of steps that
// live there. Internal to the optimizers.

#include <cstdint>
#include <functional>
#include <optional>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>

#include "torchamp/kernels/cuda/step.h"
#include "torchamp/multi_tensor/cuda_step.h"
#include "torchamp/optim/step_plan.h"

namespace torchamp::optim::detail {

/// What an optimizer tells about one item of a plan.
struct DeviceItem {
  kernels::Stream param;
  kernels::Stream state[3];
  at::Tensor moment;           ///< the first state: a new one means that a state was loaded
  int64_t applied_steps = 0;   ///< where the device has not counted yet
  int64_t* on_host = nullptr;  ///< the state's own count, where it has one
};

/// What an optimizer tells about a plan.
struct DeviceList {
  kernels::cuda::Method method = kernels::cuda::Method::kAdam;
  std::vector<kernels::cuda::Numbers> groups;
  std::vector<DeviceItem> items;  ///< in the plan's order
};

class DeviceStep {
 public:
  explicit DeviceStep(at::Device device) : engine_(device) {}

  at::Device device() const { return engine_.device(); }
  /// Whether `parameter` has made a step here.
  bool knows(const at::Tensor& parameter) const {
    return counts_.count(parameter.unsafeGetTensorImpl()) != 0;
  }

  struct Settings {
    bool measures = false;
    bool checks = false;
    std::optional<double> max_norm;
    at::Tensor found_inf;
    at::Tensor inverse_scale;  ///< undefined: 1
    /// Whether an item's gradient still holds the scale.
    std::function<bool(const PlanItem&)> is_scaled;
  };
  /// One step; the host takes it for applied until read_counts().
  multi_tensor::CudaStepResult run(StepPlan& plan, const DeviceList& list,
                                   const Settings& settings);

  /// Applied steps of every parameter, from the device: waits for it. Calls visit(parameter,
  /// steps).
  void read_counts(const std::function<void(c10::TensorImpl*, int64_t)>& visit);

 private:
  struct Count {
    at::Tensor counts;  // int64 on the device, shared by those that began together
    int64_t place = 0;
    at::Tensor moment;
    int64_t expected = 0;  // what the host says, if nobody loaded a state
  };
  void take_counts(const StepPlan& plan, const DeviceList& list, bool capturing);

  multi_tensor::CudaStep engine_;
  std::unordered_map<c10::TensorImpl*, Count> counts_;
};

}  // namespace torchamp::optim::detail
