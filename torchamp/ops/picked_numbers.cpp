// float16 ops on CPU that pick a few numbers of a large tensor: the loss of labels of pixels, and
// the maxima of embedding bags. Only what is picked is widened.

#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_embedding_bag_forward_only_ops.h>
#include <ATen/ops/_embedding_bag_ops.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/nll_loss2d_forward_ops.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include "torchamp/ops/half_op.h"
#include "torchamp/ops/loss_reduction.h"
#include "torchamp/ops/op_kernel.h"
#include "torchamp/ops/optional_tensor.h"
#include "torchamp/ops/ours_first.h"
#include "torchamp/ops/rows.h"

namespace torchamp::ops::detail {
namespace {

using Optional = std::optional<at::Tensor>;

bool is_half(const at::Tensor& x) { return is_plain(x) && x.scalar_type() == at::kHalf; }

at::Tensor half_scalar(double value, const at::Tensor& like) {
  at::Tensor scalar = at::empty({}, like.options());
  *scalar.mutable_data_ptr<c10::Half>() = c10::Half(static_cast<float>(value));
  return scalar;
}

using LossAndWeight = std::tuple<at::Tensor, at::Tensor>;  // loss, sum of weights

bool takes_nll_loss(const at::Tensor& x, const at::Tensor& target, const Optional& weight,
                    int64_t reduction) {
  return is_half(x) && x.dim() == 4 && x.numel() > 0 && is_plain(target) && target.dim() == 3 &&
         target.scalar_type() == at::kLong && target.is_contiguous() &&
         target.size(0) == x.size(0) && target.size(1) == x.size(2) &&
         target.size(2) == x.size(3) &&
         (!is_given(weight) || (is_half(*weight) && weight->dim() == 1 && weight->is_contiguous() &&
                                weight->numel() == x.size(1))) &&
         is_reduction(reduction);
}

struct LossSums {
  double loss = 0, weight = 0;
};

// Nothing, too, where a label is out of range, which LibTorch reports.
std::optional<LossAndWeight> nll_loss2d(const at::Tensor& x, const at::Tensor& target,
                                        const Optional& weight, int64_t reduction,
                                        const c10::SymInt& ignored) {
  if (!takes_nll_loss(x, target, weight, reduction) || !ignored.maybe_as_int().has_value()) {
    return std::nullopt;
  }
  const int64_t ignore_index = *ignored.maybe_as_int();
  const bool keeps_all = reduction == at::Reduction::None;
  const auto* from = x.const_data_ptr<c10::Half>();
  const auto* labels = target.const_data_ptr<int64_t>();
  const auto* weights = is_given(weight) ? weight->const_data_ptr<c10::Half>() : nullptr;
  const int64_t N = x.size(0), C = x.size(1), H = x.size(2), W = x.size(3);
  at::Tensor losses;
  if (keeps_all) losses = at::empty({N, H, W}, x.options());
  auto* to = keeps_all ? losses.mutable_data_ptr<c10::Half>() : nullptr;
  const int64_t of_image = x.stride(0), of_label = x.stride(1), of_row = x.stride(2),
                of_column = x.stride(3);
  std::vector<LossSums> sums(static_cast<size_t>(N * H));
  std::vector<char> is_wrong(sums.size(), 0);
  // Rows of pixels, whose sums do not depend on the number of threads.
  at::parallel_for(0, N * H, grain_of(8 * W), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const c10::Half* x_of_row = from + row / H * of_image + row % H * of_row;
      LossSums& of = sums[static_cast<size_t>(row)];
      for (int64_t column = 0; column < W; ++column) {
        const int64_t pixel = row * W + column, label = labels[pixel];
        double loss = 0;
        if (label != ignore_index) {
          if (label < 0 || label >= C) {
            is_wrong[static_cast<size_t>(row)] = 1;
            return;
          }
          const double factor = weights == nullptr ? 1.0F : static_cast<float>(weights[label]);
          loss = -factor * static_cast<float>(x_of_row[label * of_label + column * of_column]);
          of.loss += loss;
          of.weight += factor;
        }
        if (to != nullptr) to[pixel] = c10::Half(static_cast<float>(loss));
      }
    }
  });
  for (const char wrong : is_wrong) {
    if (wrong != 0) return std::nullopt;
  }
  if (keeps_all) return LossAndWeight(std::move(losses), half_scalar(0, x));
  LossSums all;
  for (const LossSums& of : sums) {
    all.loss += of.loss;
    all.weight += of.weight;
  }
  const double loss = reduction == at::Reduction::Mean ? all.loss / all.weight : all.loss;
  return LossAndWeight(half_scalar(loss, x), half_scalar(all.weight, x));
}

// Bags of which the largest number is taken: by LibTorch's float32 kernel, from all rows or, where
// fewer are picked, from a copy of these.
template <class Op>
struct EmbeddingBag {
  using Four = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;
  static inline Before before;

  static Four call(c10::DispatchKeySet keys, const at::Tensor& weight, const at::Tensor& indices,
                   const at::Tensor& offsets, bool scale_grad_by_freq, int64_t mode, bool sparse,
                   const Optional& per_sample_weights, bool include_last_offset,
                   int64_t padding_idx) {
    const auto run = [&](const at::Tensor& rows, const at::Tensor& places) {
      return before.call<Four, const at::Tensor&, const at::Tensor&, const at::Tensor&, bool,
                         int64_t, bool, const Optional&, bool, int64_t>(
          keys, rows, places, offsets, scale_grad_by_freq, mode, sparse, per_sample_weights,
          include_last_offset, padding_idx);
    };
    constexpr int64_t kMax = 2;
    const bool is_ours = mode == kMax && is_half(weight) && weight.dim() == 2 &&
                         is_plain(indices) && indices.dim() == 1 && indices.numel() > 0 &&
                         !is_given(per_sample_weights);
    if (!is_ours) return run(weight, indices);
    const KernelsOnly kernels_only;
    if (weight.size(0) <= indices.numel()) {
      auto [y, bag_of_index, bag_size, places] = run(to_float(weight), indices);
      return {to_half(y), bag_of_index, bag_size, places};
    }
    if (padding_idx >= 0 || indices.min().template item<int64_t>() < 0 ||
        indices.max().template item<int64_t>() >= weight.size(0)) {
      return run(weight, indices);
    }
    // Rows are renamed by their position among the indices, and renamed back.
    const at::Tensor rows = to_float(weight.index_select(0, indices));
    auto [y, bag_of_index, bag_size, places] =
        run(rows, at::arange(indices.numel(), indices.options()));
    const at::Tensor renamed = indices.index_select(0, places.flatten()).view_as(places);
    const at::Tensor is_empty = bag_size.eq(0).unsqueeze(1);
    return {to_half(y), bag_of_index, bag_size, at::where(is_empty, places, renamed)};
  }
};

constexpr const char* kLoss = "fp16 is 6 times slower than fp32";
constexpr const char* kBag = "fp16 is 3 times slower than fp32 for the largest of a bag";

}  // namespace

void add_picked_numbers(OpTable& table) {
  namespace op = at::_ops;
  add_ours_first<op::nll_loss2d_forward, &nll_loss2d>(table, kFloat16, kLoss);
  table.add<op::_embedding_bag, EmbeddingBag<op::_embedding_bag>>(kFloat16, kBag);
  table.add<op::_embedding_bag_forward_only, EmbeddingBag<op::_embedding_bag_forward_only>>(
      kFloat16, kBag);
}

}  // namespace torchamp::ops::detail
