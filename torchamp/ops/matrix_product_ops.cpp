// Matrix products of 16-bit tensors on CPU: LibTorch multiplies float16 element by element where
// the CPU has no fp16 arithmetic, and bfloat16 of small matrices slower than float32.

#include <ATen/ExpandUtils.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_addmm_activation_ops.h>
#include <ATen/ops/addbmm_ops.h>
#include <ATen/ops/addmm_ops.h>
#include <ATen/ops/addmv_ops.h>
#include <ATen/ops/baddbmm_ops.h>
#include <ATen/ops/bmm_ops.h>
#include <ATen/ops/mm_ops.h>

#include "torchamp/ops/chosen_op.h"
#include "torchamp/ops/half_op.h"
#include "torchamp/ops/matrix_products.h"
#include "torchamp/ops/op_kernel.h"

namespace torchamp::ops::detail {
namespace {

using c10::DispatchKeySet;
using c10::Scalar;

// Matrices of `dims` dimensions whose shapes fit; others are LibTorch's to refuse.
template <int64_t dims>
bool fits(const at::Tensor& a, const at::Tensor& b) {
  return a.dim() == dims && b.dim() == dims && a.size(-1) == b.size(-2) &&
         (dims == 2 || a.size(0) == b.size(0));
}

bool is_real(const Scalar& scalar) {
  return scalar.isFloatingPoint() || scalar.isIntegral(/*includeBool=*/false);
}

// mm and bmm.
template <int64_t dims>
struct Product {
  static at::ScalarType dtype_of(const at::Tensor& a, const at::Tensor& b) {
    const at::ScalarType dtype = WidenedCall().dtype_of(a, b);
    return is_16_bit(dtype) && fits<dims>(a, b) ? dtype : at::ScalarType::Undefined;
  }
  static at::Tensor compute(const Before& /*before*/, at::ScalarType /*dtype*/,
                            DispatchKeySet /*keys*/, const at::Tensor& a, const at::Tensor& b) {
    const KernelsOnly kernels_only;
    return product(a, b, {}, 0, 1);
  }
};

// addmm and baddbmm.
template <int64_t dims>
struct AddedProduct {
  static at::ScalarType dtype_of(const at::Tensor& self, const at::Tensor& a, const at::Tensor& b,
                                 const Scalar& beta, const Scalar& alpha) {
    const at::ScalarType dtype = WidenedCall().dtype_of(self, a, b);
    if (!is_16_bit(dtype) || !fits<dims>(a, b) || !is_real(beta) || !is_real(alpha)) {
      return at::ScalarType::Undefined;
    }
    const bool expands =
        dims == 2 ? at::is_expandable_to(self.sizes(), {a.size(0), b.size(1)})
                  : at::is_expandable_to(self.sizes(), {a.size(0), a.size(1), b.size(2)});
    return expands ? dtype : at::ScalarType::Undefined;
  }
  static at::Tensor compute(const Before& /*before*/, at::ScalarType /*dtype*/,
                            DispatchKeySet /*keys*/, const at::Tensor& self, const at::Tensor& a,
                            const at::Tensor& b, const Scalar& beta, const Scalar& alpha) {
    const KernelsOnly kernels_only;
    return product(a, b, self, beta, alpha);
  }
};

// addmm_ and baddbmm_.
template <int64_t dims>
struct AddedProductInPlace {
  static at::ScalarType dtype_of(const at::Tensor& self, const at::Tensor& a, const at::Tensor& b,
                                 const Scalar& beta, const Scalar& alpha) {
    const at::ScalarType dtype = AddedProduct<dims>::dtype_of(self, a, b, beta, alpha);
    const bool is_ours = is_16_bit(dtype) && self.dim() == dims && self.size(-2) == a.size(-2) &&
                         self.size(-1) == b.size(-1) && (dims == 2 || self.size(0) == a.size(0)) &&
                         !self.is_alias_of(a) && !self.is_alias_of(b);
    return is_ours ? dtype : at::ScalarType::Undefined;
  }
  static at::Tensor& compute(const Before& /*before*/, at::ScalarType /*dtype*/,
                             DispatchKeySet /*keys*/, at::Tensor& self, const at::Tensor& a,
                             const at::Tensor& b, const Scalar& beta, const Scalar& alpha) {
    const KernelsOnly kernels_only;
    product_into(self, a, b, beta, alpha);
    return self;
  }
};

constexpr const char* kSlow =
    "fp16 is 12 to 65 times slower than fp32; bf16 up to 5 times, for small matrices";
constexpr const char* kSlowHalf = "fp16 is 12 to 65 times slower than fp32";
constexpr const char* kRounds = "rounds the running sum to fp16, at each step";

}  // namespace

void add_matrix_products(std::vector<OpKernel>& table) {
  namespace op = at::_ops;
  const auto choose = [&table]<class Op, class Wide>() {
    table.push_back(op_kernel<Op, ChosenOp<Op, Wide>>(k16Bit, kSlow,
                                                      /*is_for_cpus_without_fp16=*/false));
  };
  choose.operator()<op::mm, Product<2>>();
  choose.operator()<op::addmm, AddedProduct<2>>();
  choose.operator()<op::addmm_, AddedProductInPlace<2>>();
  choose.operator()<op::bmm, Product<3>>();
  choose.operator()<op::baddbmm, AddedProduct<3>>();
  choose.operator()<op::baddbmm_, AddedProductInPlace<3>>();
  const auto widen = [&table]<class Op>(const char* reason) {
    table.push_back(op_kernel<Op, HalfOp<Op>>(kFloat16, reason, /*is_for_cpus_without_fp16=*/true));
  };
  widen.operator()<op::mm_out>(kSlowHalf);
  widen.operator()<op::addmm_out>(kSlowHalf);
  widen.operator()<op::_addmm_activation>(kSlowHalf);
  widen.operator()<op::_addmm_activation_out>(kSlowHalf);
  widen.operator()<op::bmm_out>(kSlowHalf);
  widen.operator()<op::baddbmm_out>(kSlowHalf);
  widen.operator()<op::addbmm>(kRounds);
  widen.operator()<op::addbmm_>(kRounds);
  widen.operator()<op::addbmm_out>(kRounds);
  widen.operator()<op::addmv>(kRounds);
  widen.operator()<op::addmv_>(kRounds);
  widen.operator()<op::addmv_out>(kRounds);
}

}  // namespace torchamp::ops::detail
