// GELU of both kinds, in float32 and rounded once.

#include <optional>
#include <type_traits>

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/gelu_backward_ops.h>
#include <ATen/ops/gelu_ops.h>

#include "torchamp/kernels/cpu/table.h"
#include "torchamp/ops/op_kernel.h"
#include "torchamp/ops/ours_first.h"
#include "torchamp/ops/rows.h"

namespace torchamp::ops::detail {
namespace {

constexpr int64_t kGrain = 16384;

// LibTorch's erf of 16-bit numbers is one polynomial, and twice as fast as ours.
bool is_faster(const at::Tensor& self, c10::string_view approximate) {
  return approximate == "tanh" || (approximate == "none" && self.scalar_type() == at::kFloat);
}

// Any order of dimensions, as long as the numbers lie in one piece.
bool is_dense(const at::Tensor& x) {
  return is_plain_float(x) && x.numel() > 0 && x.is_non_overlapping_and_dense();
}

template <typename T>
T* moved(T* data, const at::Tensor& tensor, int64_t elements) {
  using Byte = std::conditional_t<std::is_const_v<T>, const char, char>;
  return static_cast<Byte*>(data) + elements * static_cast<int64_t>(tensor.element_size());
}

std::optional<at::Tensor> gelu(const at::Tensor& self, c10::string_view approximate) {
  if (!is_dense(self) || !is_faster(self, approximate)) return std::nullopt;
  const KernelsOnly kernels_only;
  at::Tensor out = at::empty_like(self, at::MemoryFormat::Preserve);
  const kernels::Storage storage = storage_of(self.scalar_type());
  const auto kernel = kernels::cpu_table().rows.gelu;
  const void* from = self.const_data_ptr();
  void* to = out.mutable_data_ptr();
  at::parallel_for(0, self.numel(), kGrain, [&](int64_t begin, int64_t end) {
    kernel(storage, approximate == "tanh", moved(from, self, begin), moved(to, out, begin),
           end - begin);
  });
  return out;
}

std::optional<at::Tensor> gelu_backward(const at::Tensor& grad_output, const at::Tensor& self,
                                        c10::string_view approximate) {
  const bool is_ours = is_dense(self) && is_faster(self, approximate) && is_dense(grad_output) &&
                       grad_output.scalar_type() == self.scalar_type() &&
                       grad_output.sizes() == self.sizes() &&
                       grad_output.strides() == self.strides();
  if (!is_ours) return std::nullopt;
  const KernelsOnly kernels_only;
  at::Tensor out = at::empty_like(self, at::MemoryFormat::Preserve);
  const kernels::Storage storage = storage_of(self.scalar_type());
  const auto kernel = kernels::cpu_table().rows.gelu_backward;
  const void* grad = grad_output.const_data_ptr();
  const void* from = self.const_data_ptr();
  void* to = out.mutable_data_ptr();
  at::parallel_for(0, self.numel(), kGrain, [&](int64_t begin, int64_t end) {
    kernel(storage, approximate == "tanh", moved(grad, self, begin), moved(from, self, begin),
           moved(to, out, begin), end - begin);
  });
  return out;
}

constexpr const char* kDtypes = "float32; tanh also bfloat16, float16";
constexpr const char* kReason = "one exponential a number, and one rounding";

}  // namespace

void add_gelu(OpTable& table) {
  add_ours_first<at::_ops::gelu, &gelu>(table, kDtypes, kReason);
  add_ours_first<at::_ops::gelu_backward, &gelu_backward>(table, kDtypes, kReason);
}

}  // namespace torchamp::ops::detail
