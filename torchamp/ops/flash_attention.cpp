#include "torchamp/ops/flash_attention.h"

#include <cmath>

#include <ATen/ExpandUtils.h>
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include "torchamp/kernels/cpu/attention.h"

namespace torchamp::ops::detail {
namespace {

using kernels::AttentionGrads;
using kernels::AttentionHead;
using kernels::AttentionKernels;
using kernels::Bf16Rows;

bool has_rows(const at::Tensor& x) {
  return x.dim() == 4 && x.scalar_type() == at::kBFloat16 && x.is_cpu() &&
         x.layout() == at::kStrided && x.stride(3) == 1 && x.numel() > 0;
}

bool takes_mask(const at::Tensor& mask, at::IntArrayRef sizes) {
  if (!mask.defined()) return true;
  return (mask.scalar_type() == at::kBFloat16 || mask.scalar_type() == at::kFloat) &&
         mask.is_cpu() && mask.layout() == at::kStrided && mask.dim() > 0 &&
         at::is_expandable_to(mask.sizes(), sizes) && (mask.size(-1) == 1 || mask.stride(-1) == 1);
}

// What the kernels take. One thread computes a head, so there must be a head for each.
bool takes(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
           double dropout_p, const at::Tensor& mask) {
  if (dropout_p != 0.0) return false;
  if (!has_rows(query) || !has_rows(key) || !has_rows(value)) return false;
  const int64_t head_size = query.size(3);
  return head_size % kernels::kHeadSizeStep == 0 && head_size <= kernels::kMaxHeadSize &&
         key.sizes() == value.sizes() && key.size(0) == query.size(0) &&
         key.size(1) == query.size(1) && key.size(3) == head_size &&
         query.size(0) * query.size(1) >= at::get_num_threads() &&
         takes_mask(mask, {query.size(0), query.size(1), query.size(2), key.size(2)});
}

Bf16Rows rows_of(const at::Tensor& x, int64_t batch, int64_t head) {
  auto* data = static_cast<uint16_t*>(x.data_ptr());
  return {data + batch * x.stride(0) + head * x.stride(1), x.stride(2)};
}

// The tensors of a call, and one head of them.
struct Call {
  const at::Tensor &query, &key, &value, &out, &logsumexp;
  at::Tensor mask;
  bool is_causal;
  std::optional<double> scale;

  AttentionHead head(int64_t index) const {
    const int64_t b = index / query.size(1), h = index % query.size(1);
    AttentionHead head;
    head.num_queries = query.size(2);
    head.num_keys = key.size(2);
    head.head_size = query.size(3);
    head.is_causal = is_causal;
    head.scale =
        static_cast<float>(scale.value_or(1.0 / std::sqrt(static_cast<double>(query.size(3)))));
    if (mask.defined()) {
      head.mask.is_bf16 = mask.scalar_type() == at::kBFloat16;
      head.mask.data =
          static_cast<const char*>(mask.const_data_ptr()) +
          (b * mask.stride(0) + h * mask.stride(1)) * static_cast<int64_t>(mask.element_size());
      head.mask.row_stride = mask.stride(2);
      head.mask.column_stride = mask.stride(3);
    }
    head.query = rows_of(query, b, h);
    head.key = rows_of(key, b, h);
    head.value = rows_of(value, b, h);
    head.output = rows_of(out, b, h);
    head.log_sum_exp = static_cast<float*>(logsumexp.data_ptr()) + b * logsumexp.stride(0) +
                       h * logsumexp.stride(1);
    head.log_sum_exp_stride = logsumexp.stride(2);
    return head;
  }
  int64_t num_heads() const { return query.size(0) * query.size(1); }
};

// [batch, heads, rows, ...], with the heads of a row side by side in memory.
at::Tensor empty_rows(const at::Tensor& like) {
  return at::empty({like.size(0), like.size(2), like.size(1), like.size(3)}, like.options())
      .transpose(1, 2);
}

at::Tensor defined_or_none(const std::optional<at::Tensor>& mask) {
  return mask.has_value() ? *mask : at::Tensor();
}

// With a row for each query of each head; one number for all keys has the stride 0.
at::Tensor expanded(const at::Tensor& mask, const at::Tensor& query, const at::Tensor& key) {
  if (!mask.defined()) return mask;
  return mask.expand({query.size(0), query.size(1), query.size(2), key.size(2)});
}

at::Tensor scratch_of(int64_t bytes) {
  return at::empty({bytes}, at::TensorOptions().dtype(at::kByte));
}

}  // namespace

std::optional<std::tuple<at::Tensor, at::Tensor>> flash_attention(
    const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, double dropout_p,
    bool is_causal, const std::optional<at::Tensor>& attn_mask, std::optional<double> scale) {
  const AttentionKernels* kernels = kernels::attention_kernels();
  const at::Tensor mask = defined_or_none(attn_mask);
  if (kernels == nullptr || !takes(query, key, value, dropout_p, mask)) return {};
  const at::Tensor out = empty_rows(query);
  const at::Tensor logsumexp =
      at::empty({query.size(0), query.size(2), query.size(1)}, query.options().dtype(at::kFloat))
          .transpose(1, 2);
  const Call call{query, key, value, out, logsumexp, expanded(mask, query, key), is_causal, scale};
  at::parallel_for(0, call.num_heads(), 1, [&](int64_t begin, int64_t end) {
    const at::Tensor scratch = scratch_of(kernels->forward_scratch(call.head(begin)));
    for (int64_t i = begin; i < end; ++i) kernels->forward(call.head(i), scratch.data_ptr());
  });
  return std::tuple(out, logsumexp);
}

std::optional<std::tuple<at::Tensor, at::Tensor, at::Tensor>> flash_attention_backward(
    const at::Tensor& grad_out, const at::Tensor& query, const at::Tensor& key,
    const at::Tensor& value, const at::Tensor& out, const at::Tensor& logsumexp, double dropout_p,
    bool is_causal, const std::optional<at::Tensor>& attn_mask, std::optional<double> scale) {
  const AttentionKernels* kernels = kernels::attention_kernels();
  const at::Tensor mask = defined_or_none(attn_mask);
  if (kernels == nullptr || !takes(query, key, value, dropout_p, mask)) return {};
  if (!has_rows(out) || !grad_out.defined() || grad_out.scalar_type() != at::kBFloat16 ||
      grad_out.sizes() != query.sizes() || out.sizes() != query.sizes() ||
      logsumexp.sizes() != query.sizes().slice(0, 3) || logsumexp.scalar_type() != at::kFloat) {
    return {};
  }
  const at::Tensor grads = grad_out.stride(3) == 1 ? grad_out : grad_out.contiguous();
  const at::Tensor grad_query = empty_rows(query);
  const at::Tensor grad_key = empty_rows(key);
  const at::Tensor grad_value = empty_rows(value);
  const Call call{query, key, value, out, logsumexp, expanded(mask, query, key), is_causal, scale};
  at::parallel_for(0, call.num_heads(), 1, [&](int64_t begin, int64_t end) {
    const at::Tensor scratch = scratch_of(kernels->backward_scratch(call.head(begin)));
    for (int64_t i = begin; i < end; ++i) {
      const int64_t b = i / query.size(1), h = i % query.size(1);
      const AttentionGrads parts{rows_of(grads, b, h), rows_of(grad_query, b, h),
                                 rows_of(grad_key, b, h), rows_of(grad_value, b, h)};
      kernels->backward(call.head(i), parts, scratch.data_ptr());
    }
  });
  return std::tuple(grad_query, grad_key, grad_value);
}

}  // namespace torchamp::ops::detail
