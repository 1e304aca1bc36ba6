// float16 ops element by element, on CPU, where LibTorch's kernel leaves the vector unit unused.

#include <ATen/core/Tensor.h>
#include <ATen/ops/_prelu_kernel_backward_ops.h>
#include <ATen/ops/erfinv_ops.h>
#include <ATen/ops/flip_ops.h>
#include <ATen/ops/logit_backward_ops.h>
#include <ATen/ops/logit_ops.h>
#include <ATen/ops/mish_backward_ops.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/pow_ops.h>
#include <ATen/ops/rrelu_with_noise_ops.h>
#include <ATen/ops/xlogy_ops.h>

#include "torchamp/ops/half_blocks.h"
#include "torchamp/ops/half_op.h"
#include "torchamp/ops/op_kernel.h"

namespace torchamp::ops::detail {
namespace {

// Moves bits: LibTorch's kernel for 16-bit integers does so 10 times as fast as that for float16.
struct Flip {
  static inline Before before;
  static at::Tensor call(c10::DispatchKeySet keys, const at::Tensor& self, at::IntArrayRef dims) {
    const auto flip = [&](const at::Tensor& tensor) {
      return before.call<at::Tensor, const at::Tensor&, at::IntArrayRef>(keys, tensor, dims);
    };
    if (!HalfCall().takes(self)) return flip(self);
    const KernelsOnly kernels_only;
    return flip(self.view(at::kShort)).view(at::kHalf);
  }
};

// A square is a product, of which LibTorch's kernel rounds once and uses the vector unit.
struct Power : HalfPointwise<at::_ops::pow_Tensor_Scalar> {
  static at::Tensor call(c10::DispatchKeySet keys, const at::Tensor& self,
                         const at::Scalar& exponent) {
    if (exponent.isComplex() || !exponent.equal(2) || !HalfCall().takes(self)) {
      return HalfPointwise::call(keys, self, exponent);
    }
    const KernelsOnly kernels_only;
    return at::mul(self, self);
  }
};

// The noise is written, too: the backward pass multiplies by it.
struct Rrelu {
  static inline Before before;
  static at::Tensor call(c10::DispatchKeySet keys, const at::Tensor& self, at::Tensor& noise,
                         const at::Scalar& lower, const at::Scalar& upper, bool training,
                         std::optional<at::Generator> generator) {
    const auto rrelu = [&](const at::Tensor& from, at::Tensor& slopes) {
      return before.call<at::Tensor, const at::Tensor&, at::Tensor&, const at::Scalar&,
                         const at::Scalar&, bool, std::optional<at::Generator>>(
          keys, from, slopes, lower, upper, training, generator);
    };
    if (!HalfCall().takes(self, noise)) return rrelu(self, noise);
    const KernelsOnly kernels_only;
    at::Tensor wide_noise = to_float(noise);
    const at::Tensor out = rrelu(to_float(self), wide_noise);
    store_half(wide_noise, noise);
    return to_half(out);
  }
};

struct RreluInPlace {
  static inline Before before;
  static at::Tensor& call(c10::DispatchKeySet keys, at::Tensor& self, at::Tensor& noise,
                          const at::Scalar& lower, const at::Scalar& upper, bool training,
                          std::optional<at::Generator> generator) {
    if (!HalfCall().takes(self, noise)) {
      return before.call<at::Tensor&, at::Tensor&, at::Tensor&, const at::Scalar&,
                         const at::Scalar&, bool, std::optional<at::Generator>>(
          keys, self, noise, lower, upper, training, std::move(generator));
    }
    const KernelsOnly kernels_only;
    return self.copy_(at::_ops::rrelu_with_noise::call(self, noise, lower, upper, training,
                                                       std::move(generator)));
  }
};

constexpr const char* kAbsent = "LibTorch has no fp16 kernel";
constexpr const char* kPower = "fp16 is 20 to 30 times slower than fp32 for a square";
constexpr const char* kErfinv = "fp16 is 20 times slower than fp32";
constexpr const char* kSlow = "fp16 is 1.3 to 4 times slower than fp32";

}  // namespace

void add_half_elements(std::vector<OpKernel>& table) {
  namespace op = at::_ops;
  const auto add = [&table]<class Op, class Kernel>(const char* reason) {
    table.push_back(op_kernel<Op, Kernel>(kFloat16, reason, /*is_for_cpus_without_fp16=*/false));
  };
  add.operator()<op::rrelu_with_noise, Rrelu>(kAbsent);
  add.operator()<op::rrelu_with_noise_, RreluInPlace>(kAbsent);
  add.operator()<op::pow_Tensor_Scalar, Power>(kPower);
  add.operator()<op::pow__Scalar, HalfOp<op::pow__Scalar>>(kPower);
  add.operator()<op::erfinv, HalfPointwise<op::erfinv>>(kErfinv);
  add.operator()<op::logit, HalfPointwise<op::logit>>(kSlow);
  add.operator()<op::logit_backward, HalfPointwise<op::logit_backward>>(kSlow);
  add.operator()<op::xlogy_Tensor, HalfPointwise<op::xlogy_Tensor>>(kSlow);
  add.operator()<op::mish_backward, HalfPointwise<op::mish_backward>>(kSlow);
  add.operator()<op::_prelu_kernel_backward, HalfOp<op::_prelu_kernel_backward>>(kSlow);
  add.operator()<op::flip, Flip>("fp16 is 4 times slower than fp32");
}

}  // namespace torchamp::ops::detail
