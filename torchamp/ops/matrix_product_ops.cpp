// Matrix products of 16-bit tensors on CPU: LibTorch multiplies float16 element by element where
// the CPU has no fp16 arithmetic, and bfloat16 of small matrices slower than float32. What
// TorchAmp's own kernel takes (own_products.h) goes there; others are chosen (bfloat16) or widened
// (float16).

#include <algorithm>
#include <optional>
#include <utility>

#include <ATen/ExpandUtils.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_addmm_activation_ops.h>
#include <ATen/ops/addbmm_ops.h>
#include <ATen/ops/addmm_ops.h>
#include <ATen/ops/addmv_ops.h>
#include <ATen/ops/baddbmm_ops.h>
#include <ATen/ops/bmm_ops.h>
#include <ATen/ops/mm_ops.h>
#include <c10/util/SmallVector.h>

#include "torchamp/ops/chosen_op.h"
#include "torchamp/ops/half_op.h"
#include "torchamp/ops/matrix_products.h"
#include "torchamp/ops/op_kernel.h"
#include "torchamp/ops/ours_first.h"
#include "torchamp/ops/own_products.h"

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

// LibTorch's products read nothing where alpha is 0.
bool multiplies(const Scalar& alpha) { return alpha.toDouble() != 0.0; }

// By strides alone: LibTorch's own check (ATen/MemoryOverlap.h) leaves slices undecided.
bool has_each_element_once(const at::Tensor& tensor) {
  c10::SmallVector<std::pair<int64_t, int64_t>, 3> dims;  // stride and size, the innermost first
  for (int64_t i = 0; i < tensor.dim(); ++i) {
    if (tensor.size(i) != 1) dims.emplace_back(tensor.stride(i), tensor.size(i));
  }
  std::sort(dims.begin(), dims.end());
  int64_t extent = 1;  // of the dimensions so far
  for (const auto& [stride, size] : dims) {
    if (stride < extent) return false;
    extent += stride * (size - 1);
  }
  return true;
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
  static std::optional<at::Tensor> own(const at::Tensor& a, const at::Tensor& b) {
    const at::ScalarType dtype = dtype_of(a, b);
    if (!is_16_bit(dtype) || !takes_product(dtype, a, b)) return std::nullopt;
    return own_product(a, b, {}, 0, 1);
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
  static std::optional<at::Tensor> own(const at::Tensor& self, const at::Tensor& a,
                                       const at::Tensor& b, const Scalar& beta,
                                       const Scalar& alpha) {
    const at::ScalarType dtype = dtype_of(self, a, b, beta, alpha);
    if (!is_16_bit(dtype) || !multiplies(alpha) || !takes_product(dtype, a, b)) {
      return std::nullopt;
    }
    return own_product(a, b, self, beta, alpha);
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
  static at::Tensor* own(at::Tensor& self, const at::Tensor& a, const at::Tensor& b,
                         const Scalar& beta, const Scalar& alpha) {
    const at::ScalarType dtype = dtype_of(self, a, b, beta, alpha);
    if (!is_16_bit(dtype) || !multiplies(alpha) || !has_each_element_once(self) ||
        !takes_product(dtype, a, b)) {
      return nullptr;
    }
    own_product_into(self, self, a, b, beta, alpha);
    return &self;
  }
};

// addmv, for our own kernel alone.
struct AddedVectorProduct {
  static bool is_taken(const at::Tensor& self, const at::Tensor& a, const at::Tensor& b,
                       const Scalar& beta, const Scalar& alpha) {
    const at::ScalarType dtype = WidenedCall().dtype_of(self, a, b);
    return is_16_bit(dtype) && a.dim() == 2 && b.dim() == 1 && self.dim() == 1 &&
           a.size(1) == b.size(0) && a.size(0) == self.size(0) && is_real(beta) && is_real(alpha) &&
           multiplies(alpha) && takes_product(dtype, a, b);
  }
  static std::optional<at::Tensor> own(const at::Tensor& self, const at::Tensor& a,
                                       const at::Tensor& b, const Scalar& beta,
                                       const Scalar& alpha) {
    if (!is_taken(self, a, b, beta, alpha)) return std::nullopt;
    return own_product(a, b, self, beta, alpha);
  }
};

struct AddedVectorProductInPlace {
  static bool is_taken(const at::Tensor& self, const at::Tensor& a, const at::Tensor& b,
                       const Scalar& beta, const Scalar& alpha) {
    return AddedVectorProduct::is_taken(self, a, b, beta, alpha) && has_each_element_once(self) &&
           !self.is_alias_of(a) && !self.is_alias_of(b);
  }
  static at::Tensor* own(at::Tensor& self, const at::Tensor& a, const at::Tensor& b,
                         const Scalar& beta, const Scalar& alpha) {
    if (!is_taken(self, a, b, beta, alpha)) return nullptr;
    own_product_into(self, self, a, b, beta, alpha);
    return &self;
  }
};

struct AddedVectorProductOut {
  static at::Tensor* own(const at::Tensor& self, const at::Tensor& a, const at::Tensor& b,
                         const Scalar& beta, const Scalar& alpha, at::Tensor& out) {
    const bool is_taken = AddedVectorProduct::is_taken(self, a, b, beta, alpha) &&
                          AddedVectorProductInPlace::is_taken(out, a, b, beta, alpha) &&
                          out.scalar_type() == self.scalar_type() &&
                          (out.is_same(self) || !out.is_alias_of(self));
    if (!is_taken) return nullptr;
    own_product_into(out, self, a, b, beta, alpha);
    return &out;
  }
};

// Widens float16 where the CPU has no arithmetic for it; else the op is LibTorch's.
template <class Op, class Schema = typename Op::schema>
struct HalfIfSlow;

template <class Op, class Return, class... Args>
struct HalfIfSlow<Op, Return(Args...)> {
  static constexpr Before& before = HalfOp<Op>::before;

  static Return call(DispatchKeySet keys, Args... args) {
    if (rule_for(at::kHalf).standing == Way::kFloat32) {
      return HalfOp<Op>::call(keys, std::forward<Args>(args)...);
    }
    return before.call<Return, Args...>(keys, std::forward<Args>(args)...);
  }
};

constexpr const char* kSlow =
    "small matrices: bf16 is up to 5 times slower than fp32; fp16 12 to 65 times, large ones too";
constexpr const char* kSlowHalf = "fp16 is 12 to 65 times slower than fp32";
constexpr const char* kSlowVector =
    "fp16 rounds the running sum at each step; bf16 is slower than fp32";
constexpr const char* kRounds = "rounds the running sum to fp16, at each step";
constexpr OpTraits kForNoFp16{.is_for_cpus_without_fp16 = true};

template <class Op, class Kind>
void add_product(OpTable& table) {
  add_ours_first<Op, &Kind::own, ChosenOp<Op, Kind>>(table, k16Bit, kSlow);
}
template <class Op, class Kind>
void add_vector_product(OpTable& table) {
  add_ours_first<Op, &Kind::own, HalfIfSlow<Op>>(table, k16Bit, kSlowVector);
}

}  // namespace

void add_matrix_products(OpTable& table) {
  namespace op = at::_ops;
  add_product<op::mm, Product<2>>(table);
  add_product<op::addmm, AddedProduct<2>>(table);
  add_product<op::addmm_, AddedProductInPlace<2>>(table);
  add_product<op::bmm, Product<3>>(table);
  add_product<op::baddbmm, AddedProduct<3>>(table);
  add_product<op::baddbmm_, AddedProductInPlace<3>>(table);
  add_half_op<op::mm_out>(table, kSlowHalf, kForNoFp16);
  add_half_op<op::addmm_out>(table, kSlowHalf, kForNoFp16);
  add_half_op<op::_addmm_activation>(table, kSlowHalf, kForNoFp16);
  add_half_op<op::_addmm_activation_out>(table, kSlowHalf, kForNoFp16);
  add_half_op<op::bmm_out>(table, kSlowHalf, kForNoFp16);
  add_half_op<op::baddbmm_out>(table, kSlowHalf, kForNoFp16);
  add_half_op<op::addbmm>(table, kRounds, kForNoFp16);
  add_half_op<op::addbmm_>(table, kRounds, kForNoFp16);
  add_half_op<op::addbmm_out>(table, kRounds, kForNoFp16);
  add_vector_product<op::addmv, AddedVectorProduct>(table);
  add_vector_product<op::addmv_, AddedVectorProductInPlace>(table);
  add_vector_product<op::addmv_out, AddedVectorProductOut>(table);
}

}  // namespace torchamp::ops::detail
