#pragma once
// tensor_values(): the dense real memory behind a gradient, whatever its layout, and the checks
// that every list passes before a kernel sees it. Knows nothing of scales or norms.

#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "torchamp/base/export.h"

namespace torchamp::multi_tensor {

/// The dense, real-valued tensor that shares memory with `tensor`: itself when it is strided and
/// real, the values of a sparse (COO) tensor, the real and imaginary parts of a complex one.
///
/// Writing to the result changes `tensor`. An uncoalesced sparse tensor stays uncoalesced: dividing
/// every value divides the sum.
///
/// Dtypes:  f16, bf16, f32, f64 and the complex types of them; what the kernels compute.
/// Errors:  c10::ValueError beginning with `who()` for another layout than Strided or Sparse, for
///          another dtype, for elements that share memory (an expanded tensor), and for a pending
///          conjugate or negative bit.
TORCHAMP_API at::Tensor tensor_values(const at::Tensor& tensor,
                                      const std::function<std::string()>& who);

/// `tensor` on `device`. The copy is queued and nothing waits for it, unless `device` is the host,
/// which might otherwise read before the numbers have come.
TORCHAMP_API at::Tensor on(at::Device device, const at::Tensor& tensor);

/// Tensors that one kernel call can take: one device, one dtype, in the order they came in.
struct TensorGroup {
  at::Device device = at::kCPU;
  at::ScalarType dtype = at::kFloat;
  std::vector<at::Tensor> tensors;
};

/// Splits a list by device and dtype; groups come in order of their first member. Undefined tensors
/// are left out.
TORCHAMP_API std::vector<TensorGroup> group_by_device_and_dtype(
    const std::vector<at::Tensor>& tensors);

}  // namespace torchamp::multi_tensor
