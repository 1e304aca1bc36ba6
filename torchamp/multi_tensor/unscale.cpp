#include "torchamp/multi_tensor/unscale.h"

#include <string>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isnan.h>
#include <c10/util/Exception.h>

#include "torchamp/multi_tensor/fused_step.h"
#include "torchamp/multi_tensor/tensor_values.h"

namespace torchamp::multi_tensor {
namespace {

std::vector<TensorGroup> checked_groups(const std::vector<at::Tensor>& tensors, const char* who) {
  std::vector<at::Tensor> values;
  values.reserve(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].defined()) {
      values.push_back(tensor_values(
          tensors[i], [&] { return std::string("[") + who + "] Tensor " + std::to_string(i); }));
    }
  }
  return group_by_device_and_dtype(values);
}

void run(std::vector<TensorGroup>& groups, const at::Tensor& inv_scale, NonFiniteFlags& found) {
  for (auto& group : groups) {
    at::_amp_foreach_non_finite_check_and_unscale_(group.tensors, found.on(group.device),
                                                   multi_tensor::on(group.device, inv_scale));
  }
}

// One read on CPU: the products are neither stored nor rounded to 16 bits.
bool has_nonfinite_product(const TensorGroup& group, const at::Tensor& factor) {
  const double value = host_value(factor);  // waits where the factor lies on a GPU
  std::vector<at::Tensor> dense;            // kept alive until they were read
  std::vector<GradArray> arrays;
  for (const at::Tensor& values : group.tensors) {
    dense.push_back(values.is_non_overlapping_and_dense() ? values : values.contiguous());
    GradArray array;
    array.stream.storage =
        storage_of(dense.back(), [] { return "[check_product_finite] A tensor"; });
    array.stream.data = dense.back().data_ptr();
    array.stream.factor = value;
    array.count = dense.back().numel();
    arrays.push_back(array);
  }
  return measure(arrays).has_nonfinite;
}

at::Tensor one(at::Device device) {
  return at::full({}, 1.0, at::TensorOptions().dtype(at::kFloat).device(device));
}

}  // namespace

at::Tensor& NonFiniteFlags::on(at::Device device) {
  for (auto& flag : flags_) {
    if (flag.device() == device) {
      return flag;
    }
  }
  flags_.push_back(at::full({}, 0.0, at::TensorOptions().dtype(at::kFloat).device(device)));
  return flags_.back();
}

bool NonFiniteFlags::on_host() const {
  for (const auto& flag : flags_) {
    if (!flag.is_cpu()) {
      return false;
    }
  }
  return true;
}

at::Tensor NonFiniteFlags::sum(at::Device device) const {
  TORCH_INTERNAL_ASSERT(!flags_.empty());
  const at::NoGradGuard no_grad;
  at::Tensor total = multi_tensor::on(device, flags_.front());
  for (size_t i = 1; i < flags_.size(); ++i) {
    total = total.add(multi_tensor::on(device, flags_[i]));
  }
  return flags_.size() == 1 ? total.clone() : total;
}

void unscale_(const std::vector<at::Tensor>& tensors, const at::Tensor& inv_scale,
              NonFiniteFlags& found, bool check_product) {
  TORCH_CHECK_VALUE(
      inv_scale.defined() && inv_scale.numel() == 1 && inv_scale.scalar_type() == at::kFloat,
      "[unscale_] inv_scale must be one float32 value.");
  const at::NoGradGuard no_grad;
  auto groups = checked_groups(tensors, "unscale_");
  run(groups, inv_scale, found);
  if (check_product && !groups.empty()) {
    run(groups, one(inv_scale.device()), found);
  }
}

void check_finite(const std::vector<at::Tensor>& tensors, NonFiniteFlags& found) {
  const at::NoGradGuard no_grad;
  auto groups = checked_groups(tensors, "check_finite");
  if (!groups.empty()) {
    run(groups, one(groups.front().device), found);  // a factor of 1 leaves every bit as it is
  }
}

void check_product_finite(const std::vector<at::Tensor>& tensors, const at::Tensor& inv_scale,
                          NonFiniteFlags& found) {
  const at::NoGradGuard no_grad;
  for (auto& group : checked_groups(tensors, "check_product_finite")) {
    if (group.device.is_cpu()) {
      at::Tensor& flag = found.on(group.device);  // also where nothing is found: it was looked for
      if (has_nonfinite_product(group, inv_scale)) flag.fill_(1.0);
      continue;
    }
    const at::Tensor factor = multi_tensor::on(group.device, inv_scale);
    TensorGroup products{group.device, group.dtype == at::kDouble ? at::kDouble : at::kFloat, {}};
    for (const at::Tensor& values : group.tensors) {
      products.tensors.push_back(values.to(products.dtype).mul(factor));
    }
    std::vector<TensorGroup> groups = {std::move(products)};
    run(groups, one(group.device), found);
  }
}

at::Tensor any_nan(const std::vector<at::Tensor>& tensors, at::Device device) {
  const at::NoGradGuard no_grad;
  at::Tensor result = at::full({}, false, at::TensorOptions().dtype(at::kBool).device(device));
  for (const auto& group : checked_groups(tensors, "any_nan")) {
    for (const auto& values : group.tensors) {
      result = result.logical_or(multi_tensor::on(device, at::isnan(values).any()));
    }
  }
  return result;
}

}  // namespace torchamp::multi_tensor
