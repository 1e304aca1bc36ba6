// float16 reductions, norms and orders on CPU, through LibTorch's own float32 kernels.

#include <ATen/core/Tensor.h>
#include <ATen/ops/amax_ops.h>
#include <ATen/ops/amin_ops.h>
#include <ATen/ops/argmax_ops.h>
#include <ATen/ops/argmin_ops.h>
#include <ATen/ops/cummax_ops.h>
#include <ATen/ops/cummin_ops.h>
#include <ATen/ops/kthvalue_ops.h>
#include <ATen/ops/linalg_vector_norm_ops.h>
#include <ATen/ops/mean_ops.h>
#include <ATen/ops/median_ops.h>
#include <ATen/ops/nanmedian_ops.h>
#include <ATen/ops/prod_ops.h>
#include <ATen/ops/std_mean_ops.h>
#include <ATen/ops/std_ops.h>
#include <ATen/ops/topk_ops.h>
#include <ATen/ops/var_mean_ops.h>
#include <ATen/ops/var_ops.h>

#include "torchamp/ops/half_blocks.h"
#include "torchamp/ops/half_op.h"
#include "torchamp/ops/op_kernel.h"
#include "torchamp/ops/ours_first.h"

namespace torchamp::ops::detail {
namespace {

// norm() of LibTorch ends here, with no dtype where none was asked for.
at::Tensor* vector_norm_out(const at::Tensor& self, const at::Scalar& order,
                            at::OptionalIntArrayRef dim, bool keepdim,
                            std::optional<at::ScalarType> dtype, at::Tensor& out) {
  if (!HalfCall().takes(self, out) || dtype.value_or(at::kHalf) != at::kHalf) return nullptr;
  const at::Tensor norm =
      at::_ops::linalg_vector_norm::call(self, order, dim, keepdim, std::nullopt);
  if (out.sizes() != norm.sizes()) out.resize_(norm.sizes());
  return &out.copy_(norm);
}

constexpr const char* kNorm = "fp16 is 8 to 11 times slower than fp32";
constexpr const char* kMean = "converts the whole tensor, 2 times slower than fp32";
constexpr const char* kExtreme = "fp16 is 2 to 4 times slower than fp32";
constexpr const char* kIndex = "fp16 is 8 times slower than fp32";
constexpr const char* kVariance = "fp16 is 7 times slower than fp32";
constexpr const char* kProduct = "fp16 is 3 times slower than fp32";
constexpr const char* kRunning = "fp16 is 10 times slower than fp32";
constexpr const char* kOrder = "fp16 is 1.6 to 3 times slower than fp32";

}  // namespace

void add_half_reductions(OpTable& table) {
  namespace op = at::_ops;
  table.add<op::linalg_vector_norm, HalfReduction<op::linalg_vector_norm, Combine::kSameOp>>(
      kFloat16, kNorm);
  add_ours_first<op::linalg_vector_norm_out, &vector_norm_out>(table, kFloat16, kNorm);
  table.add<op::mean_dim, HalfReduction<op::mean_dim, Combine::kMean>>(kFloat16, kMean);
  table.add<op::amax, HalfReduction<op::amax, Combine::kSameOp>>(kFloat16, kExtreme);
  table.add<op::amin, HalfReduction<op::amin, Combine::kSameOp>>(kFloat16, kExtreme);
  table.add<op::argmax, HalfReduction<op::argmax>>(kFloat16, kIndex);
  table.add<op::argmin, HalfReduction<op::argmin>>(kFloat16, kIndex);
  table.add<op::var_correction, HalfReduction<op::var_correction>>(kFloat16, kVariance);
  table.add<op::std_correction, HalfReduction<op::std_correction>>(kFloat16, kVariance);
  add_half_op<op::var_mean_correction>(table, kVariance);
  add_half_op<op::std_mean_correction>(table, kVariance);
  table.add<op::prod_dim_int, HalfReduction<op::prod_dim_int>>(kFloat16, kProduct);
  add_half_op<op::cummax>(table, kRunning);
  add_half_op<op::cummin>(table, kRunning);
  add_half_op<op::median_dim>(table, kOrder);
  add_half_op<op::nanmedian_dim>(table, kOrder);
  add_half_op<op::median>(table, kOrder);
  add_half_op<op::nanmedian>(table, kOrder);
  add_half_op<op::kthvalue>(table, kOrder);
  add_half_op<op::topk>(table, kOrder);
}

}  // namespace torchamp::ops::detail
