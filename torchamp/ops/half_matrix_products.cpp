// float16 matrix products on CPU: LibTorch multiplies in float16, element by element, where the CPU
// has no fp16 arithmetic.

#include <ATen/ExpandUtils.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_addmm_activation_ops.h>
#include <ATen/ops/addbmm_ops.h>
#include <ATen/ops/addmm_ops.h>
#include <ATen/ops/addmv_ops.h>
#include <ATen/ops/baddbmm_ops.h>
#include <ATen/ops/bmm_ops.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm_ops.h>

#include "torchamp/ops/half_op.h"
#include "torchamp/ops/matrix_products.h"
#include "torchamp/ops/op_kernel.h"

namespace torchamp::ops::detail {
namespace {

using c10::DispatchKeySet;
using c10::Scalar;

// Shapes that do not fit are LibTorch's to refuse.
bool fits(const at::Tensor& a, const at::Tensor& b) {
  return a.dim() == 2 && b.dim() == 2 && a.size(1) == b.size(0);
}
bool fits_batch(const at::Tensor& a, const at::Tensor& b) {
  return a.dim() == 3 && b.dim() == 3 && a.size(0) == b.size(0) && a.size(2) == b.size(1);
}

bool is_real(const Scalar& scalar) {
  return scalar.isFloatingPoint() || scalar.isIntegral(/*includeBool=*/false);
}

struct Mm {
  static inline Before before;
  static at::Tensor call(DispatchKeySet keys, const at::Tensor& a, const at::Tensor& b) {
    if (!HalfCall().takes(a, b) || !fits(a, b)) {
      return before.call<at::Tensor, const at::Tensor&, const at::Tensor&>(keys, a, b);
    }
    const KernelsOnly kernels_only;
    at::Tensor out = at::empty({a.size(0), b.size(1)}, a.options());
    multiply(a, b, {}, 0, 1, out);
    return out;
  }
};

struct Bmm {
  static inline Before before;
  static at::Tensor call(DispatchKeySet keys, const at::Tensor& a, const at::Tensor& b) {
    if (!HalfCall().takes(a, b) || !fits_batch(a, b)) {
      return before.call<at::Tensor, const at::Tensor&, const at::Tensor&>(keys, a, b);
    }
    const KernelsOnly kernels_only;
    at::Tensor out = at::empty({a.size(0), a.size(1), b.size(2)}, a.options());
    multiply_batch(a, b, {}, 0, 1, out);
    return out;
  }
};

struct Addmm {
  static inline Before before;
  static at::Tensor call(DispatchKeySet keys, const at::Tensor& self, const at::Tensor& a,
                         const at::Tensor& b, const Scalar& beta, const Scalar& alpha) {
    if (!HalfCall().takes(self, a, b) || !fits(a, b) || !is_real(beta) || !is_real(alpha) ||
        !at::is_expandable_to(self.sizes(), {a.size(0), b.size(1)})) {
      return before.call<at::Tensor, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                         const Scalar&, const Scalar&>(keys, self, a, b, beta, alpha);
    }
    const KernelsOnly kernels_only;
    at::Tensor out = at::empty({a.size(0), b.size(1)}, a.options());
    multiply(a, b, self.expand(out.sizes()), beta, alpha, out);
    return out;
  }
};

struct AddmmInPlace {
  static inline Before before;
  static at::Tensor& call(DispatchKeySet keys, at::Tensor& self, const at::Tensor& a,
                          const at::Tensor& b, const Scalar& beta, const Scalar& alpha) {
    if (!HalfCall().takes(self, a, b) || !fits(a, b) || !is_real(beta) || !is_real(alpha) ||
        self.sizes() != at::IntArrayRef({a.size(0), b.size(1)}) || self.is_alias_of(a) ||
        self.is_alias_of(b)) {
      return before.call<at::Tensor&, at::Tensor&, const at::Tensor&, const at::Tensor&,
                         const Scalar&, const Scalar&>(keys, self, a, b, beta, alpha);
    }
    const KernelsOnly kernels_only;
    multiply(a, b, self, beta, alpha, self);
    return self;
  }
};

struct Baddbmm {
  static inline Before before;
  static at::Tensor call(DispatchKeySet keys, const at::Tensor& self, const at::Tensor& a,
                         const at::Tensor& b, const Scalar& beta, const Scalar& alpha) {
    if (!HalfCall().takes(self, a, b) || !fits_batch(a, b) || !is_real(beta) || !is_real(alpha) ||
        !at::is_expandable_to(self.sizes(), {a.size(0), a.size(1), b.size(2)})) {
      return before.call<at::Tensor, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                         const Scalar&, const Scalar&>(keys, self, a, b, beta, alpha);
    }
    const KernelsOnly kernels_only;
    at::Tensor out = at::empty({a.size(0), a.size(1), b.size(2)}, a.options());
    multiply_batch(a, b, self.expand(out.sizes()), beta, alpha, out);
    return out;
  }
};

struct BaddbmmInPlace {
  static inline Before before;
  static at::Tensor& call(DispatchKeySet keys, at::Tensor& self, const at::Tensor& a,
                          const at::Tensor& b, const Scalar& beta, const Scalar& alpha) {
    if (!HalfCall().takes(self, a, b) || !fits_batch(a, b) || !is_real(beta) || !is_real(alpha) ||
        self.sizes() != at::IntArrayRef({a.size(0), a.size(1), b.size(2)}) || self.is_alias_of(a) ||
        self.is_alias_of(b)) {
      return before.call<at::Tensor&, at::Tensor&, const at::Tensor&, const at::Tensor&,
                         const Scalar&, const Scalar&>(keys, self, a, b, beta, alpha);
    }
    const KernelsOnly kernels_only;
    multiply_batch(a, b, self, beta, alpha, self);
    return self;
  }
};

constexpr const char* kSlow = "fp16 is 12 to 65 times slower than fp32";
constexpr const char* kRounds = "rounds the running sum to fp16, at each step";

}  // namespace

void add_half_matrix_products(std::vector<OpKernel>& table) {
  namespace op = at::_ops;
  const auto add = [&table]<class Op, class Kernel>(const char* reason) {
    table.push_back(op_kernel<Op, Kernel>(kFloat16, reason, /*is_for_cpus_without_fp16=*/true));
  };
  add.operator()<op::mm, Mm>(kSlow);
  add.operator()<op::mm_out, HalfOp<op::mm_out>>(kSlow);
  add.operator()<op::addmm, Addmm>(kSlow);
  add.operator()<op::addmm_, AddmmInPlace>(kSlow);
  add.operator()<op::addmm_out, HalfOp<op::addmm_out>>(kSlow);
  add.operator()<op::_addmm_activation, HalfOp<op::_addmm_activation>>(kSlow);
  add.operator()<op::_addmm_activation_out, HalfOp<op::_addmm_activation_out>>(kSlow);
  add.operator()<op::bmm, Bmm>(kSlow);
  add.operator()<op::bmm_out, HalfOp<op::bmm_out>>(kSlow);
  add.operator()<op::baddbmm, Baddbmm>(kSlow);
  add.operator()<op::baddbmm_, BaddbmmInPlace>(kSlow);
  add.operator()<op::baddbmm_out, HalfOp<op::baddbmm_out>>(kSlow);
  add.operator()<op::addbmm, HalfOp<op::addbmm>>(kRounds);
  add.operator()<op::addbmm_, HalfOp<op::addbmm_>>(kRounds);
  add.operator()<op::addbmm_out, HalfOp<op::addbmm_out>>(kRounds);
  add.operator()<op::addmv, HalfOp<op::addmv>>(kRounds);
  add.operator()<op::addmv_, HalfOp<op::addmv_>>(kRounds);
  add.operator()<op::addmv_out, HalfOp<op::addmv_out>>(kRounds);
}

}  // namespace torchamp::ops::detail
