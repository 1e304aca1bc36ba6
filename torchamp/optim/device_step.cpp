#include "torchamp/optim/device_step.h"

#include <algorithm>
#include <utility>

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

namespace torchamp::optim::detail {
namespace {

at::Tensor counts_on(at::Device device, const std::vector<int64_t>& values) {
  const at::Tensor host =
      at::empty({static_cast<int64_t>(values.size())},
                at::TensorOptions().dtype(at::kLong).pinned_memory(device.is_cuda()));
  std::copy(values.begin(), values.end(), host.data_ptr<int64_t>());
  return host.to(device, /*non_blocking=*/true, /*copy=*/true);
}

// `factor` keeps the memory alive. A copy from the host would be read again by every replay of a
// graph, when the host's memory is long gone.
const float* pointer_to(at::Tensor& factor, at::Device device, bool capturing) {
  if (!factor.defined()) return nullptr;
  TORCH_CHECK(!capturing || factor.device() == device,
              "[fused step] A CUDA graph is being captured on ", device,
              ", and a factor of the gradients is on ", factor.device(), "; one on ", device,
              " is accepted, which replays read anew. Was the loss scaled on another device?");
  factor = factor.to(device, at::kFloat, /*non_blocking=*/true);
  return factor.const_data_ptr<float>();
}

}  // namespace

void DeviceStep::take_counts(const StepPlan& plan, const DeviceList& list, bool capturing) {
  std::vector<int64_t> values;
  std::vector<Count*> begun;
  for (size_t i = 0; i < list.items.size(); ++i) {
    const DeviceItem& item = list.items[i];
    Count& count = counts_[plan.items()[i].parameter.unsafeGetTensorImpl()];
    const bool is_known = count.counts.defined() && count.moment.is_same(item.moment) &&
                          (item.on_host == nullptr || count.expected == *item.on_host);
    if (is_known) continue;
    TORCH_CHECK(!capturing, "[step] A CUDA graph is being captured, and the state of ",
                plan.items()[i].name(),
                ", was loaded or its count of steps set since its last step; every replay would "
                "begin with that count. Make one step before the capture.");
    count.moment = item.moment;
    count.place = static_cast<int64_t>(values.size());
    values.push_back(item.applied_steps);
    begun.push_back(&count);
  }
  if (begun.empty()) return;
  const at::Tensor counts = counts_on(device(), values);
  for (Count* count : begun) count->counts = counts;
}

multi_tensor::CudaStepResult DeviceStep::run(StepPlan& plan, const DeviceList& list,
                                             const Settings& settings) {
  const bool capturing = engine_.is_capturing();
  take_counts(plan, list, capturing);
  multi_tensor::CudaStepRequest request;
  request.method = list.method;
  request.groups = list.groups;
  request.measures = settings.measures;
  request.checks = settings.checks;
  request.max_norm = settings.max_norm;
  request.found_inf = settings.found_inf;
  at::Tensor inverse = settings.inverse_scale;
  const float* scale_factor = pointer_to(inverse, device(), capturing);
  for (size_t i = 0; i < list.items.size(); ++i) {
    PlanItem& item = plan.items()[i];
    const DeviceItem& described = list.items[i];
    const Count& count = counts_.at(item.parameter.unsafeGetTensorImpl());
    kernels::cuda::Arrays arrays;
    arrays.grad.storage = item.gradient_stream.storage;
    arrays.grad.write_back = item.gradient_stream.write_back;
    arrays.grad.data = item.gradient_values.data_ptr();
    arrays.grad.measured = item.measured_values.data_ptr();
    const bool is_scaled =
        scale_factor != nullptr && (!settings.is_scaled || settings.is_scaled(item));
    if (is_scaled) {
      arrays.grad.factor = scale_factor;  // a second one is of an iteration left without a step
    } else {
      arrays.grad.factor = pointer_to(item.factor, device(), capturing);
      arrays.grad.second_factor = pointer_to(item.second_factor, device(), capturing);
    }
    item.has_factor = arrays.grad.factor != nullptr || arrays.grad.second_factor != nullptr ||
                      settings.max_norm.has_value();
    arrays.param = described.param;
    for (int k = 0; k < 3; ++k) arrays.state[k] = described.state[k];
    arrays.count = item.count;
    arrays.steps = count.counts.data_ptr<int64_t>() + count.place;
    arrays.number = (static_cast<uint64_t>(item.group) << 32) | item.index;
    arrays.rounds_products = item.parameter.is_complex();
    arrays.group = static_cast<int32_t>(item.group);
    request.arrays.push_back(arrays);
  }
  multi_tensor::CudaStepResult result = engine_.run(request);
  for (size_t i = 0; i < list.items.size(); ++i) {
    if (list.items[i].on_host == nullptr) continue;
    counts_.at(plan.items()[i].parameter.unsafeGetTensorImpl()).expected = ++*list.items[i].on_host;
  }
  return result;
}

void DeviceStep::read_counts(const std::function<void(c10::TensorImpl*, int64_t)>& visit) {
  std::unordered_map<const void*, at::Tensor> on_host;
  for (auto& [parameter, count] : counts_) {
    at::Tensor& values = on_host[count.counts.unsafeGetTensorImpl()];
    if (!values.defined()) values = count.counts.cpu();
    const int64_t steps = values.const_data_ptr<int64_t>()[count.place];
    visit(parameter, steps);
    count.expected = steps;
  }
}

}  // namespace torchamp::optim::detail
