// Log-softmax over the last dimension, in float32 and rounded once.

#include <optional>

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_log_softmax_backward_data_ops.h>
#include <ATen/ops/_log_softmax_ops.h>
#include <ATen/ops/empty_like.h>

#include "torchamp/kernels/cpu/table.h"
#include "torchamp/ops/cross_entropy.h"
#include "torchamp/ops/op_kernel.h"
#include "torchamp/ops/ours_first.h"
#include "torchamp/ops/rows.h"

namespace torchamp::ops::detail {
namespace {

bool has_rows(const at::Tensor& tensor, int64_t dim) {
  return is_plain_float(tensor) && tensor.dim() > 0 && (dim == -1 || dim == tensor.dim() - 1) &&
         tensor.numel() > 0 && tensor.is_contiguous();
}

std::optional<at::Tensor> log_softmax(const at::Tensor& self, int64_t dim, bool half_to_float) {
  if (half_to_float || !has_rows(self, dim)) return std::nullopt;
  const KernelsOnly kernels_only;
  at::Tensor out = at::empty_like(self, at::MemoryFormat::Contiguous);
  const int64_t columns = self.size(-1);
  const kernels::Rows from = rows_of(self, columns), to = rows_of(out, columns);
  const auto kernel = kernels::cpu_table().rows.log_softmax;
  at::parallel_for(0, self.numel() / columns, grain_of(columns), [&](int64_t begin, int64_t end) {
    kernel(from, to, columns, {begin, end});
  });
  return out;
}

std::optional<at::Tensor> log_softmax_backward(const at::Tensor& grad_output,
                                               const at::Tensor& output, int64_t dim,
                                               at::ScalarType input_dtype) {
  const bool is_ours = has_rows(grad_output, dim) && has_rows(output, dim) &&
                       grad_output.sizes() == output.sizes() &&
                       grad_output.scalar_type() == input_dtype &&
                       output.scalar_type() == input_dtype;
  if (!is_ours) return std::nullopt;
  const KernelsOnly kernels_only;
  at::Tensor out = at::empty_like(grad_output, at::MemoryFormat::Contiguous);
  const int64_t columns = output.size(-1);
  const kernels::Rows grad = rows_of(grad_output, columns), y = rows_of(output, columns),
                      to = rows_of(out, columns);
  const auto kernel = kernels::cpu_table().rows.log_softmax_backward;
  at::parallel_for(0, output.numel() / columns, grain_of(columns), [&](int64_t begin, int64_t end) {
    kernel(grad, y, to, columns, {begin, end});
  });
  return out;
}

constexpr const char* kRows = "reads each row from memory once, and rounds once";
constexpr const char* kLoss = "keeps no table of log probabilities, and fills none with zeros";
constexpr const char* kNoCast = "reads 16-bit logits; LibTorch first makes a float32 copy";

}  // namespace

void add_softmax(OpTable& table) {
  namespace op = at::_ops;
  add_ours_first<op::_log_softmax, &log_softmax>(table, kFloat32And16Bits, kRows);
  add_ours_first<op::_log_softmax_backward_data, &log_softmax_backward>(table, kFloat32And16Bits,
                                                                        kRows);
  table.add<op::cross_entropy_loss, CrossEntropyLoss>(kFloat32And16Bits, kLoss,
                                                      {.key = c10::DispatchKey::AutogradCPU});
  table.add<op::cross_entropy_loss, CrossEntropyUnderAutocast>(
      k16Bit, kNoCast, {.key = c10::DispatchKey::AutocastCPU});
}

}  // namespace torchamp::ops::detail
