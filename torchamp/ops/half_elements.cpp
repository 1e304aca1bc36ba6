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

void add_half_elements(OpTable& table) {
  namespace op = at::_ops;
  table.add<op::rrelu_with_noise, Rrelu>(kFloat16, kAbsent);
  table.add<op::rrelu_with_noise_, RreluInPlace>(kFloat16, kAbsent);
  table.add<op::pow_Tensor_Scalar, Power>(kFloat16, kPower);
  add_half_op<op::pow__Scalar>(table, kPower);
  table.add<op::erfinv, HalfPointwise<op::erfinv>>(kFloat16, kErfinv);
  table.add<op::logit, HalfPointwise<op::logit>>(kFloat16, kSlow);
  table.add<op::logit_backward, HalfPointwise<op::logit_backward>>(kFloat16, kSlow);
  table.add<op::xlogy_Tensor, HalfPointwise<op::xlogy_Tensor>>(kFloat16, kSlow);
  table.add<op::mish_backward, HalfPointwise<op::mish_backward>>(kFloat16, kSlow);
  add_half_op<op::_prelu_kernel_backward>(table, kSlow);
  table.add<op::flip, Flip>(kFloat16, "fp16 is 4 times slower than fp32");
}

}  // namespace torchamp::ops::detail
