#include "torchamp/multi_tensor/norm.h"

#include <cmath>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>

#include "torchamp/multi_tensor/tensor_values.h"

namespace torchamp::multi_tensor {

at::Tensor total_norm(const std::vector<at::Tensor>& tensors, double norm_type) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> dense;
  dense.reserve(tensors.size());
  for (const auto& tensor : tensors) {
    if (tensor.defined()) {
      at::Tensor values = tensor.is_sparse() ? tensor.coalesce()._values() : tensor;
      if (!std::isinf(norm_type) || values.numel() > 0) {  // nothing has no largest element
        dense.push_back(std::move(values));
      }
    }
  }
  if (dense.empty()) {
    return at::full({}, 0.0, at::TensorOptions().dtype(at::kFloat));
  }
  const auto first_device = dense.front().device();
  std::vector<at::Tensor> norms;
  norms.reserve(dense.size());
  for (const auto& group : group_by_device_and_dtype(dense)) {
    for (const auto& norm : at::_foreach_norm(group.tensors, norm_type)) {
      norms.push_back(multi_tensor::on(first_device, norm));
    }
  }
  return at::linalg_vector_norm(at::stack(norms), norm_type);
}

void multiply_(const std::vector<at::Tensor>& tensors, const at::Tensor& factor) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> dense;
  dense.reserve(tensors.size());
  for (const auto& tensor : tensors) {
    if (tensor.defined()) {
      dense.push_back(tensor.is_sparse() ? tensor._values() : tensor);
    }
  }
  for (const auto& group : group_by_device_and_dtype(dense)) {
    at::_foreach_mul_(group.tensors, multi_tensor::on(group.device, factor));
  }
}

}  // namespace torchamp::multi_tensor
