#include "torchamp/ops/channel_rows.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include <ATen/Parallel.h>

#include "torchamp/kernels/cpu/table.h"
#include "torchamp/kernels/formula/moments.h"
#include "torchamp/ops/half_op.h"

namespace torchamp::ops::detail {
namespace {

using kernels::Storage;

constexpr int64_t kFewestNumbers = 16384;  // below, the call costs more than the loop
constexpr int64_t kMostChunks = 32;        // parts of the rows; as many partial sums

// Rows in chunks of whole blocks, the same whatever the number of threads.
struct Chunks {
  explicit Chunks(int64_t num_rows) : rows(num_rows) {
    const int64_t blocks = (rows + kernels::kRowsOfBlock - 1) / kernels::kRowsOfBlock;
    length = (blocks + kMostChunks - 1) / kMostChunks * kernels::kRowsOfBlock;
    count = (rows + length - 1) / length;
  }
  kernels::Range range(int64_t i) const { return {i * length, std::min(rows, (i + 1) * length)}; }
  int64_t rows, length = 0, count = 0;
};

// What the joined rows of all chunks have for each of their channels.
struct Partials {
  Partials(const Chunks& chunks, int64_t width)
      : width(width), numbers(static_cast<size_t>(2 * chunks.count * width)) {}
  double* first(int64_t chunk) { return numbers.data() + 2 * chunk * width; }
  double* second(int64_t chunk) { return first(chunk) + width; }
  int64_t width;
  std::vector<double> numbers;
};

}  // namespace

Storage image_storage(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return Storage::kF32;
    case at::kBFloat16:
      return Storage::kBf16;
    case at::kHalf:
      return Storage::kF16;
    default:
      return Storage::kNone;
  }
}

bool is_image_tensor(const at::Tensor& tensor) {
  return tensor.layout() == at::kStrided && tensor.device().is_cpu() && !has_names(tensor) &&
         image_storage(tensor.scalar_type()) != Storage::kNone;
}

std::optional<ChannelRows> ChannelRows::of(const at::Tensor& x) {
  if (!is_image_tensor(x) || x.numel() < kFewestNumbers) return std::nullopt;
  ChannelRows rows;
  if (x.dim() == 2) {
    rows.format = at::MemoryFormat::Contiguous;
  } else if (x.dim() == 4) {
    rows.format = at::MemoryFormat::ChannelsLast;
  } else if (x.dim() == 5) {
    rows.format = at::MemoryFormat::ChannelsLast3d;
  } else {
    return std::nullopt;
  }
  if (x.suggest_memory_format() != rows.format || !x.is_contiguous(rows.format)) {
    return std::nullopt;
  }
  rows.storage = image_storage(x.scalar_type());
  rows.channels = x.size(1);
  rows.count = x.numel() / rows.channels;
  rows.joined = kernels::kChannelGroup / std::gcd(rows.channels, kernels::kChannelGroup);
  if (rows.count < 2 || rows.count % rows.joined != 0) return std::nullopt;
  return rows;
}

bool ChannelRows::holds(const at::Tensor& other, const at::Tensor& x) const {
  return is_image_tensor(other) && other.scalar_type() == x.scalar_type() &&
         other.sizes() == x.sizes() && other.is_contiguous(format);
}

std::vector<float> ChannelRows::spread_out(const std::vector<double>& of_channels) const {
  std::vector<float> all;
  all.reserve(static_cast<size_t>(channels * joined));
  for (int64_t i = 0; i < joined; ++i) {
    for (const double x : of_channels) all.push_back(static_cast<float>(x));
  }
  return all;
}

ChannelSums channel_moments(const ChannelRows& rows, const void* x) {
  const kernels::KernelTable& table = kernels::cpu_table();
  const int64_t width = rows.channels * rows.joined;
  const Chunks chunks(rows.count / rows.joined);
  Partials partials(chunks, width);
  at::parallel_for(0, chunks.count, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      table.image.moments(rows.storage, width, x, chunks.range(i), partials.first(i),
                          partials.second(i));
    }
  });
  // Chunks first, then the rows that were joined.
  std::vector<double> sum(partials.first(0), partials.first(0) + width);
  std::vector<double> spread(partials.second(0), partials.second(0) + width);
  auto count = static_cast<double>(chunks.range(0).end);
  for (int64_t i = 1; i < chunks.count; ++i) {
    const auto more = static_cast<double>(chunks.range(i).end - chunks.range(i).begin);
    kernels::join_moments(width, count, sum.data(), spread.data(), more, partials.first(i),
                          partials.second(i));
    count += more;
  }
  for (int64_t i = 1; i < rows.joined; ++i) {
    const double* other = sum.data() + i * rows.channels;
    kernels::join_moments(rows.channels, static_cast<double>(i) * count, sum.data(), spread.data(),
                          count, other, spread.data() + i * rows.channels);
  }
  sum.resize(static_cast<size_t>(rows.channels));
  spread.resize(static_cast<size_t>(rows.channels));
  for (double& x_sum : sum) x_sum /= static_cast<double>(rows.count);
  return {std::move(sum), std::move(spread)};
}

ChannelSums channel_grad_sums(const ChannelRows& rows, const kernels::NormBackward& norm) {
  const kernels::KernelTable& table = kernels::cpu_table();
  const int64_t width = rows.channels * rows.joined;
  const Chunks chunks(rows.count / rows.joined);
  Partials partials(chunks, width);
  at::parallel_for(0, chunks.count, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      table.image.grad_sums(norm, chunks.range(i), partials.first(i), partials.second(i));
    }
  });
  const auto add_up = [&](double* (Partials::*of)(int64_t)) {
    std::vector<double> sums(static_cast<size_t>(rows.channels));
    for (int64_t i = 0; i < chunks.count; ++i) {
      const double* part = (partials.*of)(i);
      for (int64_t j = 0; j < rows.joined; ++j, part += rows.channels) {
        for (int64_t c = 0; c < rows.channels; ++c) sums[static_cast<size_t>(c)] += part[c];
      }
    }
    return sums;
  };
  return {add_up(&Partials::first), add_up(&Partials::second)};
}

// Both go over the rows from the last to the first: the sums were taken in the other direction, and
// the last rows may still be in a cache.

void channel_normalize(const ChannelRows& rows, const kernels::NormForward& norm) {
  const kernels::KernelTable& table = kernels::cpu_table();
  const Chunks chunks(rows.count / rows.joined);
  at::parallel_for(0, chunks.count, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = end - 1; i >= begin; --i) table.image.normalize(norm, chunks.range(i));
  });
}

void channel_grad_input(const ChannelRows& rows, const kernels::NormBackward& norm) {
  const kernels::KernelTable& table = kernels::cpu_table();
  const Chunks chunks(rows.count / rows.joined);
  at::parallel_for(0, chunks.count, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = end - 1; i >= begin; --i) table.image.grad_input(norm, chunks.range(i));
  });
}

}  // namespace torchamp::ops::detail
