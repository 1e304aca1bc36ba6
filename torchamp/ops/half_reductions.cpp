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

namespace torchamp::ops::detail {
namespace {

// norm() of LibTorch ends here, with no dtype where none was asked for.
struct VectorNormOut {
  static inline Before before;
  static at::Tensor& call(c10::DispatchKeySet keys, const at::Tensor& self, const at::Scalar& order,
                          at::OptionalIntArrayRef dim, bool keepdim,
                          std::optional<at::ScalarType> dtype, at::Tensor& out) {
    if (!HalfCall().takes(self, out) || dtype.value_or(at::kHalf) != at::kHalf) {
      return before.call<at::Tensor&, const at::Tensor&, const at::Scalar&, at::OptionalIntArrayRef,
                         bool, std::optional<at::ScalarType>, at::Tensor&>(keys, self, order, dim,
                                                                           keepdim, dtype, out);
    }
    const at::Tensor norm =
        at::_ops::linalg_vector_norm::call(self, order, dim, keepdim, std::nullopt);
    if (out.sizes() != norm.sizes()) out.resize_(norm.sizes());
    return out.copy_(norm);
  }
};

constexpr const char* kNorm = "fp16 is 8 to 11 times slower than fp32";
constexpr const char* kMean = "converts the whole tensor, 2 times slower than fp32";
constexpr const char* kExtreme = "fp16 is 2 to 4 times slower than fp32";
constexpr const char* kIndex = "fp16 is 8 times slower than fp32";
constexpr const char* kVariance = "fp16 is 7 times slower than fp32";
constexpr const char* kProduct = "fp16 is 3 times slower than fp32";
constexpr const char* kRunning = "fp16 is 10 times slower than fp32";
constexpr const char* kOrder = "fp16 is 1.6 to 3 times slower than fp32";

}  // namespace

void add_half_reductions(std::vector<OpKernel>& table) {
  namespace op = at::_ops;
  const auto add = [&table]<class Op, class Kernel>(const char* reason) {
    table.push_back(op_kernel<Op, Kernel>(kFloat16, reason, /*is_for_cpus_without_fp16=*/false));
  };
  add.operator()<op::linalg_vector_norm, HalfReduction<op::linalg_vector_norm, Combine::kSameOp>>(
      kNorm);
  add.operator()<op::linalg_vector_norm_out, VectorNormOut>(kNorm);
  add.operator()<op::mean_dim, HalfReduction<op::mean_dim, Combine::kMean>>(kMean);
  add.operator()<op::amax, HalfReduction<op::amax, Combine::kSameOp>>(kExtreme);
  add.operator()<op::amin, HalfReduction<op::amin, Combine::kSameOp>>(kExtreme);
  add.operator()<op::argmax, HalfReduction<op::argmax>>(kIndex);
  add.operator()<op::argmin, HalfReduction<op::argmin>>(kIndex);
  add.operator()<op::var_correction, HalfReduction<op::var_correction>>(kVariance);
  add.operator()<op::std_correction, HalfReduction<op::std_correction>>(kVariance);
  add.operator()<op::var_mean_correction, HalfOp<op::var_mean_correction>>(kVariance);
  add.operator()<op::std_mean_correction, HalfOp<op::std_mean_correction>>(kVariance);
  add.operator()<op::prod_dim_int, HalfReduction<op::prod_dim_int>>(kProduct);
  add.operator()<op::cummax, HalfOp<op::cummax>>(kRunning);
  add.operator()<op::cummin, HalfOp<op::cummin>>(kRunning);
  add.operator()<op::median_dim, HalfOp<op::median_dim>>(kOrder);
  add.operator()<op::nanmedian_dim, HalfOp<op::nanmedian_dim>>(kOrder);
  add.operator()<op::median, HalfOp<op::median>>(kOrder);
  add.operator()<op::nanmedian, HalfOp<op::nanmedian>>(kOrder);
  add.operator()<op::kthvalue, HalfOp<op::kthvalue>>(kOrder);
  add.operator()<op::topk, HalfOp<op::topk>>(kOrder);
}

}  // namespace torchamp::ops::detail
