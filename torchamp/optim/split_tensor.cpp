#include "torchamp/optim/split_tensor.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bitwise_left_shift.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

namespace torchamp::optim::detail {
namespace {

constexpr int64_t kHighMask = 0xFFFF;
constexpr int64_t kHalfWay = 0x8000;

// int64 numbers of which only the low 16 bits count, to int16 of the same bits.
at::Tensor to_int16_bits(const at::Tensor& numbers) {
  return ((numbers + kHalfWay).bitwise_and(kHighMask) - kHalfWay).to(at::kShort);
}

// int16 bits to int64 numbers in [0, 65535].
at::Tensor from_int16_bits(const at::Tensor& bits) { return bits.to(at::kLong) & kHighMask; }

at::Tensor bit_values(const at::Tensor& like) {
  return at::bitwise_left_shift(at::ones({8}, like.options().dtype(at::kByte)),
                                at::arange(8, like.options().dtype(at::kByte)));
}

at::Tensor pack_bits(const at::Tensor& bits) {
  const int64_t n = bits.numel();
  const int64_t num_bytes = num_tie_bytes(n);
  const at::Tensor padded = at::zeros({num_bytes * 8}, bits.options().dtype(at::kByte));
  padded.narrow(0, 0, n).copy_(bits);
  return padded.view({num_bytes, 8}).mul(bit_values(bits)).sum(1, /*keepdim=*/false, at::kByte);
}

at::Tensor unpack_bits(const at::Tensor& packed, int64_t n) {
  return packed.unsqueeze(1).bitwise_and(bit_values(packed)).ne(0).view({-1}).narrow(0, 0, n);
}

}  // namespace

SplitTensor split_tensor(const at::Tensor& values, at::ScalarType dtype) {
  if (dtype == at::kHalf) {
    return {values.to(at::kHalf).view(at::kShort), values.clone(), {}};
  }
  const at::Tensor bits = values.view(at::kInt).to(at::kLong);
  const at::Tensor is_nan = values.isnan();
  const at::Tensor high = (bits.bitwise_right_shift(16)) & kHighMask;
  const at::Tensor weight = (bits + 0x7FFF + (high & 1)).bitwise_right_shift(16) & kHighMask;
  const at::Tensor low = bits & kHighMask;
  const at::Tensor is_tie_from_below = low.eq(kHalfWay) & weight.ne(high) & is_nan.logical_not();
  return {to_int16_bits(weight.masked_fill(is_nan, 0x7FC0)),
          to_int16_bits(low.masked_fill(is_nan, 0)), pack_bits(is_tie_from_below)};
}

at::Tensor join_tensor(const SplitTensor& parts, at::ScalarType dtype) {
  if (dtype == at::kHalf) {
    const at::Tensor weight = parts.weight.view(at::kHalf);
    const at::Tensor is_nearest = parts.rest.to(at::kHalf).view(at::kShort).eq(parts.weight);
    return at::where(is_nearest, parts.rest, weight.to(at::kFloat));
  }
  const at::Tensor low = from_int16_bits(parts.rest);
  const at::Tensor was_rounded_up = low.gt(kHalfWay) | unpack_bits(parts.ties, parts.rest.numel());
  const at::Tensor high =
      (from_int16_bits(parts.weight) - was_rounded_up.to(at::kLong)) & kHighMask;
  // Above 2^31 stands for a negative int32 of the same bits.
  const at::Tensor bits = high.bitwise_left_shift(16) | low;
  const at::Tensor wrapped = bits - bits.bitwise_right_shift(31).bitwise_left_shift(32);
  return wrapped.to(at::kInt).view(at::kFloat);
}

}  // namespace torchamp::optim::detail
