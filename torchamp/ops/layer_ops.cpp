// Convolutions and attention of 16-bit tensors on CPU, by LibTorch's own kernels or its float32
// ones, convolutions also in channels_last; bfloat16 attention by TorchAmp's where they take it.

#include <ATen/core/Tensor.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward_ops.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_ops.h>
#include <ATen/ops/convolution_backward_ops.h>
#include <ATen/ops/convolution_ops.h>

#include "torchamp/ops/chosen_op.h"
#include "torchamp/ops/flash_attention.h"
#include "torchamp/ops/op_kernel.h"
#include "torchamp/ops/ours_first.h"

namespace torchamp::ops::detail {
namespace {

namespace op = at::_ops;

constexpr const char* kConvolution =
    "fp16 is 7 to 200 times slower than fp32, and bf16 up to 5 times, for small images";
constexpr const char* kAttention =
    "fp16 is 3 to 6 times slower than fp32, and bf16 has an eighth of the CPU's speed";

// Each channel alone, or transposed: LibTorch's bfloat16 has 0.72 to 0.8 of float32's speed at
// sizes where it gains with others.
bool is_slow_in_bf16(const at::Tensor& weight, bool is_transposed) {
  return is_transposed || (weight.dim() > 2 && weight.size(0) > 1 && weight.size(1) == 1);
}

struct WidenedConvolution : Widened<op::convolution> {
  template <class Bias, class Sizes, class... Rest>
  static bool gains_at_any_size(const at::Tensor& /*input*/, const at::Tensor& weight,
                                const Bias& /*bias*/, const Sizes& /*stride*/,
                                const Sizes& /*padding*/, const Sizes& /*dilation*/,
                                bool is_transposed, const Rest&... /*rest*/) {
    return is_slow_in_bf16(weight, is_transposed);
  }
};

struct WidenedConvolutionBackward : Widened<op::convolution_backward> {
  template <class BiasSizes, class Sizes, class... Rest>
  static bool gains_at_any_size(const at::Tensor& /*grad_output*/, const at::Tensor& /*input*/,
                                const at::Tensor& weight, const BiasSizes& /*bias*/,
                                const Sizes& /*stride*/, const Sizes& /*padding*/,
                                const Sizes& /*dilation*/, bool is_transposed,
                                const Rest&... /*rest*/) {
    return is_slow_in_bf16(weight, is_transposed);
  }
};

template <class Op, class Wide>
using ChosenConvolution = ChosenOp<Op, Wide, ChannelsLast<Op>>;

using Attention = op::_scaled_dot_product_flash_attention_for_cpu;
using AttentionBackward = op::_scaled_dot_product_flash_attention_for_cpu_backward;
// The sums of exponentials stay float32, and a mask may be.
using WidenedAttention =
    Widened<Attention, HalfOpRule{.float_outputs = 0b10, .allows_float = true}>;
using WidenedAttentionBackward = Widened<AttentionBackward, HalfOpRule{.allows_float = true}>;

}  // namespace

void add_layers(OpTable& table) {
  table.add<op::convolution, ChosenConvolution<op::convolution, WidenedConvolution>>(k16Bit,
                                                                                     kConvolution);
  table.add<op::convolution_backward,
            ChosenConvolution<op::convolution_backward, WidenedConvolutionBackward>>(k16Bit,
                                                                                     kConvolution);
  add_ours_first<Attention, &flash_attention, ChosenOp<Attention, WidenedAttention>>(table, k16Bit,
                                                                                     kAttention);
  add_ours_first<AttentionBackward, &flash_attention_backward,
                 ChosenOp<AttentionBackward, WidenedAttentionBackward>>(table, k16Bit, kAttention);
}

}  // namespace torchamp::ops::detail
