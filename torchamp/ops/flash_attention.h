#pragma once
// bfloat16 attention on CPU by TorchAmp's own kernels, where they take the call. Internal.

#include <optional>
#include <tuple>

#include <ATen/core/Tensor.h>

namespace torchamp::ops::detail {

/// Output [batch, heads, queries, head size] and log-sum-exp [batch, heads, queries, float32] as
/// LibTorch lays them out; nothing where the kernels do not take the call.
std::optional<std::tuple<at::Tensor, at::Tensor>> flash_attention(
    const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, double dropout_p,
    bool is_causal, const std::optional<at::Tensor>& attn_mask, std::optional<double> scale);

/// Gradients of query, key and value, of what flash_attention() or LibTorch's kernel returned.
std::optional<std::tuple<at::Tensor, at::Tensor, at::Tensor>> flash_attention_backward(
    const at::Tensor& grad_out, const at::Tensor& query, const at::Tensor& key,
    const at::Tensor& value, const at::Tensor& out, const at::Tensor& logsumexp, double dropout_p,
    bool is_causal, const std::optional<at::Tensor>& attn_mask, std::optional<double> scale);

}  // namespace torchamp::ops::detail
