#include "torchamp/multi_tensor/tensor_values.h"

#include <algorithm>

#include <ATen/MemoryOverlap.h>
#include <ATen/ops/view_as_real.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

namespace torchamp::multi_tensor {

at::Tensor tensor_values(const at::Tensor& tensor, const std::function<std::string()>& who) {
  TORCH_CHECK_VALUE(tensor.defined(), who(), " is undefined; a tensor is needed.");
  TORCH_CHECK_VALUE(tensor.layout() == at::kStrided || tensor.layout() == at::kSparse, who(),
                    " has layout ", tensor.layout(),
                    "; Strided or Sparse (COO) is accepted. Convert it with to_dense().");
  const auto dtype = c10::toRealValueType(tensor.scalar_type());
  TORCH_CHECK_VALUE(
      dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kDouble || dtype == at::kHalf,
      who(), " is ", tensor.scalar_type(),
      "; Float, BFloat16, Double, Half or a complex type of them is accepted.");
  at::Tensor values = tensor.is_sparse() ? tensor._values() : tensor;
  TORCH_CHECK_VALUE(!values.is_conj() && !values.is_neg(), who(),
                    " carries a pending conjugate or negative bit, so it cannot be changed in "
                    "place; call resolve_conj().resolve_neg() on it first.");
  TORCH_CHECK_VALUE(at::has_internal_overlap(values) != at::MemOverlap::Yes, who(),
                    " has elements that share memory (an expanded tensor), so it cannot be changed "
                    "in place; clone() it first.");
  return values.is_complex() ? at::view_as_real(values) : values;
}

at::Tensor on(at::Device device, const at::Tensor& tensor) {
  return tensor.to(device, /*non_blocking=*/!device.is_cpu());
}

std::vector<TensorGroup> group_by_device_and_dtype(const std::vector<at::Tensor>& tensors) {
  std::vector<TensorGroup> groups;
  for (const auto& tensor : tensors) {
    if (!tensor.defined()) {
      continue;
    }
    auto group = std::find_if(groups.begin(), groups.end(), [&](const TensorGroup& g) {
      return g.device == tensor.device() && g.dtype == tensor.scalar_type();
    });
    if (group == groups.end()) {
      groups.push_back({tensor.device(), tensor.scalar_type(), {}});
      group = groups.end() - 1;
    }
    group->tensors.push_back(tensor);
  }
  return groups;
}

}  // namespace torchamp::multi_tensor
