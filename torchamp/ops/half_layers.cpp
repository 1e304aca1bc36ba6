// float16 convolutions, attention, recurrent layers and pooling on CPU, through LibTorch's own
// float32 kernels.

#include <ATen/core/Tensor.h>
#include <ATen/ops/_adaptive_avg_pool2d_backward_ops.h>
#include <ATen/ops/_adaptive_avg_pool3d_backward_ops.h>
#include <ATen/ops/_adaptive_avg_pool3d_ops.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward_ops.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_ops.h>
#include <ATen/ops/avg_pool3d_backward_ops.h>
#include <ATen/ops/avg_pool3d_ops.h>
#include <ATen/ops/col2im_ops.h>
#include <ATen/ops/convolution_backward_ops.h>
#include <ATen/ops/convolution_ops.h>
#include <ATen/ops/mkldnn_rnn_layer_backward_ops.h>
#include <ATen/ops/mkldnn_rnn_layer_ops.h>

#include "torchamp/ops/flash_attention.h"
#include "torchamp/ops/half_op.h"
#include "torchamp/ops/op_kernel.h"

namespace torchamp::ops::detail {
namespace {

constexpr const char* kConvolution = "fp16 is 7 to 200 times slower than fp32";
constexpr const char* kAttention =
    "fp16 is 3 to 6 times slower than fp32, and bf16 has an eighth of the CPU's speed";
constexpr const char* kRecurrent = "LibTorch has no fp16 LSTM layer for this CPU";
constexpr const char* kPooling = "LibTorch has no fp16 kernel";
constexpr const char* kAdaptive = "fp16 is 15 times slower than fp32";
constexpr const char* kAdaptive2d = "rounds the running sum of a gradient to fp16";
constexpr const char* kCol2im = "rounds the running sum to fp16, and is 6 times slower than fp32";

// The sums of exponentials stay float32, and a mask may be.
using HalfAttention = HalfOp<at::_ops::_scaled_dot_product_flash_attention_for_cpu,
                             HalfOpRule{.float_outputs = 0b10, .allows_float = true}>;
using HalfAttentionBackward = HalfOp<at::_ops::_scaled_dot_product_flash_attention_for_cpu_backward,
                                     HalfOpRule{.allows_float = true}>;

struct Attention {
  static inline Before& before = HalfAttention::before;
  static std::tuple<at::Tensor, at::Tensor> call(c10::DispatchKeySet keys, const at::Tensor& query,
                                                 const at::Tensor& key, const at::Tensor& value,
                                                 double dropout_p, bool is_causal,
                                                 const std::optional<at::Tensor>& attn_mask,
                                                 std::optional<double> scale) {
    auto ours = flash_attention(query, key, value, dropout_p, is_causal, attn_mask, scale);
    return ours.has_value() ? *std::move(ours)
                            : HalfAttention::call(keys, query, key, value, dropout_p, is_causal,
                                                  attn_mask, scale);
  }
};

struct AttentionBackward {
  static inline Before& before = HalfAttentionBackward::before;
  static std::tuple<at::Tensor, at::Tensor, at::Tensor> call(
      c10::DispatchKeySet keys, const at::Tensor& grad_out, const at::Tensor& query,
      const at::Tensor& key, const at::Tensor& value, const at::Tensor& out,
      const at::Tensor& logsumexp, double dropout_p, bool is_causal,
      const std::optional<at::Tensor>& attn_mask, std::optional<double> scale) {
    auto ours = flash_attention_backward(grad_out, query, key, value, out, logsumexp, dropout_p,
                                         is_causal, attn_mask, scale);
    return ours.has_value()
               ? *std::move(ours)
               : HalfAttentionBackward::call(keys, grad_out, query, key, value, out, logsumexp,
                                             dropout_p, is_causal, attn_mask, scale);
  }
};

}  // namespace

void add_half_layers(std::vector<OpKernel>& table) {
  namespace op = at::_ops;
  const auto add =
      [&table]<class Op, HalfOpRule rule = HalfOpRule{}>(const char* reason, bool for_no_fp16) {
    table.push_back(op_kernel<Op, HalfOp<Op, rule>>(kFloat16, reason, for_no_fp16));
  };
  add.operator()<op::convolution>(kConvolution, true);
  add.operator()<op::convolution_backward>(kConvolution, true);
  const char* attention_dtypes = "float16, bfloat16";
  table.push_back(op_kernel<op::_scaled_dot_product_flash_attention_for_cpu, Attention>(
      attention_dtypes, kAttention, /*is_for_cpus_without_fp16=*/false));
  table.push_back(
      op_kernel<op::_scaled_dot_product_flash_attention_for_cpu_backward, AttentionBackward>(
          attention_dtypes, kAttention, /*is_for_cpus_without_fp16=*/false));
  add.operator()<op::mkldnn_rnn_layer>(kRecurrent, true);
  add.operator()<op::mkldnn_rnn_layer_backward>(kRecurrent, true);
  add.operator()<op::avg_pool3d>(kPooling, false);
  add.operator()<op::avg_pool3d_out>(kPooling, false);
  add.operator()<op::avg_pool3d_backward>(kPooling, false);
  add.operator()<op::avg_pool3d_backward_grad_input>(kPooling, false);
  add.operator()<op::_adaptive_avg_pool2d_backward>(kAdaptive2d, false);
  add.operator()<op::_adaptive_avg_pool3d>(kAdaptive, false);
  add.operator()<op::_adaptive_avg_pool3d_backward>(kAdaptive, false);
  add.operator()<op::col2im>(kCol2im, false);
}

}  // namespace torchamp::ops::detail
