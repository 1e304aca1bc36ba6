// float16 sums of rows on CPU: over one dimension that is not the last, at the places of an index,
// and with an outer product. Rows are added in float32, in a block that stays in the cache, and
// rounded once.

#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/addr_ops.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/index_add_ops.h>
#include <ATen/ops/sum_ops.h>
#include <c10/util/OptionalArrayRef.h>

#include "torchamp/kernels/cpu/table.h"
#include "torchamp/ops/half_op.h"
#include "torchamp/ops/op_kernel.h"
#include "torchamp/ops/ours_first.h"
#include "torchamp/ops/rows.h"

namespace torchamp::ops::detail {
namespace {

constexpr int64_t kBlock = 2048;           // float32 sums, 8 KiB on the stack
constexpr int64_t kFewestNumbers = 16384;  // below, the call costs more than the loop
constexpr int64_t kShortestRow = 16;       // one lane
constexpr int64_t kMostSummands = 256;     // one after the other: beyond, LibTorch's sum is a tree

bool is_dense_half(const at::Tensor& x) {
  return is_plain(x) && x.scalar_type() == at::kHalf && x.is_contiguous();
}

void write(const float* from, c10::Half* to, int64_t count) {
  kernels::Stream stream;
  stream.storage = kernels::Storage::kF16;
  stream.data = to;
  kernels::cpu_table().write(stream, {0, count}, from);
}

// Sums of blocks of one row: begins with zeros or a row, adds rows, writes.
template <class Visit>
void for_each_block(int64_t length, Visit&& visit) {
  std::array<float, kBlock> sums;
  for (int64_t begin = 0; begin < length; begin += kBlock) {
    visit(begin, std::min(kBlock, length - begin), sums.data());
  }
}

void add(const c10::Half* row, float factor, float* sums, int64_t count) {
  kernels::cpu_table().rows.add_row(kernels::Storage::kF16, row, factor, sums, count);
}

// The only one that is summed over; -1: the call is LibTorch's.
int64_t dim_of(const at::Tensor& x, at::OptionalIntArrayRef dims,
               std::optional<at::ScalarType> dtype) {
  if (!is_dense_half(x) || x.numel() < kFewestNumbers || !dims.has_value() || dims->size() != 1 ||
      dtype.value_or(at::kHalf) != at::kHalf) {
    return -1;
  }
  const int64_t dim = dims->front() < 0 ? dims->front() + x.dim() : dims->front();
  if (dim < 0 || dim >= x.dim() || x.size(dim) < 2 || x.size(dim) > kMostSummands) return -1;
  int64_t length = 1;
  for (int64_t i = dim + 1; i < x.dim(); ++i) length *= x.size(i);
  return length >= kShortestRow && x.stride(dim) == length ? dim : -1;
}

std::optional<at::Tensor> sum(const at::Tensor& x, at::OptionalIntArrayRef dims, bool keeps_dim,
                              std::optional<at::ScalarType> dtype) {
  const int64_t dim = dim_of(x, dims, dtype);
  if (dim < 0) return std::nullopt;
  const int64_t summands = x.size(dim), length = x.stride(dim);
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes[static_cast<size_t>(dim)] = 1;
  at::Tensor out = at::empty(sizes, x.options());
  const auto* from = x.const_data_ptr<c10::Half>();
  auto* to = out.mutable_data_ptr<c10::Half>();
  // Tasks: parts of a row of the result, where there are few rows.
  const int64_t parts = (length + kBlock - 1) / kBlock, rows = out.numel() / length;
  at::parallel_for(0, rows * parts, grain_of(std::min(length, kBlock) * summands),
                   [&](int64_t first, int64_t last) {
                     std::array<float, kBlock> sums;
                     for (int64_t task = first; task < last; ++task) {
                       const int64_t row = task / parts, begin = task % parts * kBlock;
                       const int64_t count = std::min(kBlock, length - begin);
                       const c10::Half* x_of_row = from + row * summands * length + begin;
                       std::fill_n(sums.begin(), count, 0.0F);
                       for (int64_t i = 0; i < summands; ++i) {
                         add(x_of_row + i * length, 1.0F, sums.data(), count);
                       }
                       write(sums.data(), to + row * length + begin, count);
                     }
                   });
  return keeps_dim ? out : out.squeeze(dim);
}

// Rows of `source` go to the rows of a tensor that an index names. Positions in the index, those of
// one row side by side, in their order.
class RowsByTarget {
 public:
  // Nothing where an index is not that of a row.
  template <class Index>
  static std::optional<RowsByTarget> of(const Index* index, int64_t count, int64_t num_rows) {
    for (int64_t i = 0; i < count; ++i) {
      if (index[i] < 0 || index[i] >= num_rows) return std::nullopt;
    }
    RowsByTarget rows;
    rows.positions.resize(static_cast<size_t>(count));
    if (num_rows <= 8 * count) {
      std::vector<int64_t> place(static_cast<size_t>(num_rows) + 1, 0);
      for (int64_t i = 0; i < count; ++i) ++place[static_cast<size_t>(index[i]) + 1];
      for (size_t row = 1; row < place.size(); ++row) place[row] += place[row - 1];
      for (int64_t i = 0; i < count; ++i) {
        rows.positions[static_cast<size_t>(place[static_cast<size_t>(index[i])]++)] = i;
      }
    } else {
      for (int64_t i = 0; i < count; ++i) rows.positions[static_cast<size_t>(i)] = i;
      std::sort(rows.positions.begin(), rows.positions.end(), [&](int64_t x, int64_t y) {
        return index[x] != index[y] ? index[x] < index[y] : x < y;
      });
    }
    for (int64_t i = 0; i < count; ++i) {
      const int64_t row = index[rows.positions[static_cast<size_t>(i)]];
      if (rows.targets.empty() || rows.targets.back() != row) {
        rows.targets.push_back(row);
        rows.begins.push_back(i);
      }
    }
    rows.begins.push_back(count);
    return rows;
  }

  std::vector<int64_t> positions;
  std::vector<int64_t> targets;  // distinct rows
  std::vector<int64_t> begins;   // of each target's run of positions, and the end of all
};

// Whether self's rows have been added to; else nothing has changed.
bool add_at(const at::Tensor& self, int64_t dim, const at::Tensor& index, const at::Tensor& source,
            const at::Scalar& alpha) {
  const bool is_ours =
      is_dense_half(self) && is_dense_half(source) && is_plain(index) && self.dim() > 0 &&
      (dim == 0 || dim == -self.dim()) && index.dim() == 1 && index.is_contiguous() &&
      source.dim() == self.dim() && source.size(0) == index.numel() && !alpha.isComplex() &&
      source.numel() >= kFewestNumbers && source.sizes().slice(1) == self.sizes().slice(1) &&
      !self.storage().is_alias_of(source.storage());
  if (!is_ours) return false;
  const int64_t count = index.numel(), length = source.numel() / count;
  if (length < kShortestRow) return false;
  std::optional<RowsByTarget> rows;
  if (index.scalar_type() == at::kLong) {
    rows = RowsByTarget::of(index.const_data_ptr<int64_t>(), count, self.size(0));
  } else if (index.scalar_type() == at::kInt) {
    rows = RowsByTarget::of(index.const_data_ptr<int32_t>(), count, self.size(0));
  }
  if (!rows.has_value()) return false;
  const auto* from = source.const_data_ptr<c10::Half>();
  auto* to = self.mutable_data_ptr<c10::Half>();
  const auto factor = alpha.to<float>();
  at::parallel_for(0, static_cast<int64_t>(rows->targets.size()), grain_of(length),
                   [&](int64_t first, int64_t last) {
                     for (int64_t i = first; i < last; ++i) {
                       const auto target = static_cast<size_t>(i);
                       c10::Half* row = to + rows->targets[target] * length;
                       for_each_block(length, [&](int64_t begin, int64_t size, float* sums) {
                         std::fill_n(sums, size, 0.0F);
                         add(row + begin, 1.0F, sums, size);
                         for (int64_t k = rows->begins[target]; k < rows->begins[target + 1]; ++k) {
                           const int64_t position = rows->positions[static_cast<size_t>(k)];
                           add(from + position * length + begin, factor, sums, size);
                         }
                         write(sums, row + begin, size);
                       });
                     }
                   });
  return true;
}

at::Tensor* index_add_(at::Tensor& self, int64_t dim, const at::Tensor& index,
                       const at::Tensor& source, const at::Scalar& alpha) {
  return add_at(self, dim, index, source, alpha) ? &self : nullptr;
}

std::optional<at::Tensor> index_add(const at::Tensor& self, int64_t dim, const at::Tensor& index,
                                    const at::Tensor& source, const at::Scalar& alpha) {
  if (!is_dense_half(self)) return std::nullopt;
  const KernelsOnly kernels_only;
  at::Tensor out = self.clone();
  return add_at(out, dim, index, source, alpha) ? std::optional(std::move(out)) : std::nullopt;
}

// beta * self + alpha * (a, by row) * (b, by column)
std::optional<at::Tensor> addr(const at::Tensor& self, const at::Tensor& a, const at::Tensor& b,
                               const at::Scalar& beta, const at::Scalar& alpha) {
  const bool is_ours = is_dense_half(self) && is_dense_half(a) && is_dense_half(b) &&
                       self.dim() == 2 && a.dim() == 1 && b.dim() == 1 && self.numel() > 0 &&
                       a.size(0) == self.size(0) && b.size(0) == self.size(1) &&
                       beta.isFloatingPoint() == alpha.isFloatingPoint() && !beta.isComplex() &&
                       !alpha.isComplex();
  if (!is_ours) return std::nullopt;
  const int64_t columns = self.size(1);
  at::Tensor out = at::empty_like(self);
  const at::Tensor wide_a = to_float(a), wide_b = to_float(b);
  const auto* of_rows = wide_a.const_data_ptr<float>();
  const auto* of_columns = wide_b.const_data_ptr<float>();
  const auto* from = self.const_data_ptr<c10::Half>();
  auto* to = out.mutable_data_ptr<c10::Half>();
  const auto of_self = beta.to<float>(), of_product = alpha.to<float>();
  const auto kernel = kernels::cpu_table().rows.scale_and_add_row;
  at::parallel_for(0, self.size(0), grain_of(columns), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t at = row * columns;
      kernel(kernels::Storage::kF16, of_self == 0 ? nullptr : from + at, of_self, of_columns,
             of_product * of_rows[row], to + at, columns);
    }
  });
  return out;
}

constexpr const char* kSum = "fp16 is 2 to 4 times slower than fp32 for a few rows";
constexpr const char* kIndexAdd = "fp16 is 2 to 3 times slower than fp32, and rounds each sum";
constexpr const char* kAddr = "fp16 is 4 times slower than fp32";

}  // namespace

void add_row_sums(OpTable& table) {
  namespace op = at::_ops;
  add_ours_first<op::sum_dim_IntList, &sum>(table, kFloat16, kSum);
  add_ours_first<op::index_add, &index_add>(table, kFloat16, kIndexAdd);
  add_ours_first<op::index_add_, &index_add_>(table, kFloat16, kIndexAdd);
  add_ours_first<op::addr, &addr, HalfOp<op::addr>>(table, kFloat16, kAddr);
}

}  // namespace torchamp::ops::detail
