// Compiled with -fopenmp: at::parallel_for is a serial loop without it.

#include "torchamp/multi_tensor/fused_step.h"

#include <algorithm>
#include <atomic>
#include <cmath>

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>

#include "torchamp/multi_tensor/cpu_kernels.h"

namespace torchamp::multi_tensor {
namespace {

#ifndef _OPENMP
#error "fused_step.cpp needs -fopenmp"
#endif

constexpr int64_t kRange = 65536;  // 4 arrays of float32 = 1 MiB; many ranges a thread, few calls
constexpr int64_t kTask = 32768;   // elements worth a thread's wake-up, about 10 us of work
static_assert(kRange % kernels::kBlock8 == 0);

struct Piece {
  size_t array;
  kernels::Range range;
};

std::vector<Piece> cut(const std::vector<int64_t>& counts) {
  std::vector<Piece> pieces;
  pieces.reserve(counts.size());
  for (size_t array = 0; array < counts.size(); ++array) {
    for (int64_t begin = 0; begin < counts[array]; begin += kRange) {
      pieces.push_back({array, {begin, std::min(begin + kRange, counts[array])}});
    }
  }
  return pieces;
}

// Threads take the next pieces as they come, so that a thread whose core is busy elsewhere takes
// fewer; small pieces are taken several at a time.
void run(const std::vector<Piece>& pieces, c10::function_ref<void(size_t piece)> visit) {
  int64_t total = 0;
  for (const Piece& piece : pieces) total += piece.range.end - piece.range.begin;
  const int64_t num_tasks = std::min<int64_t>(at::get_num_threads(), total / kTask);
  if (num_tasks <= 1 || at::in_parallel_region()) {
    for (size_t i = 0; i < pieces.size(); ++i) visit(i);
    return;
  }
  const auto num_pieces = static_cast<int64_t>(pieces.size());
  const int64_t at_once = std::max<int64_t>(1, num_pieces * kTask / 2 / total);
  std::atomic<int64_t> next = 0;
  at::parallel_for(0, num_tasks, 1, [&](int64_t /*begin*/, int64_t /*end*/) {
    for (int64_t i = next.fetch_add(at_once); i < num_pieces; i = next.fetch_add(at_once)) {
      for (int64_t j = i; j < std::min(i + at_once, num_pieces); ++j) visit(static_cast<size_t>(j));
    }
  });
}

std::vector<int64_t> counts_of(const std::vector<GradArray>& gradients) {
  std::vector<int64_t> counts;
  counts.reserve(gradients.size());
  for (const GradArray& gradient : gradients) counts.push_back(gradient.count);
  return counts;
}

}  // namespace

const kernels::KernelTable& cpu_kernels() {
  if (const auto error = cpu_kernels_error()) TORCH_CHECK_VALUE(false, *error);
  return kernels::cpu_table();
}

kernels::Storage storage_of(const at::Tensor& tensor, const std::function<std::string()>& who) {
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return kernels::Storage::kF32;
    case at::kDouble:
      return kernels::Storage::kF64;
    case at::kBFloat16:
      return kernels::Storage::kBf16;
    case at::kHalf:
      return kernels::Storage::kF16;
    default:
      TORCH_CHECK_VALUE(false, who(), " is ", tensor.scalar_type(),
                        "; Float, Double, BFloat16, Half or a complex type of the first two is "
                        "accepted.");
  }
}

float host_value(const at::Tensor& scalar) {
  if (scalar.is_cpu() && scalar.scalar_type() == at::kFloat) {
    return *scalar.const_data_ptr<float>();
  }
  return scalar.item<float>();
}

void for_each_range(const std::vector<int64_t>& counts,
                    c10::function_ref<void(size_t array, kernels::Range range)> visit) {
  const std::vector<Piece> pieces = cut(counts);
  run(pieces, [&](size_t i) {
    const Piece& piece = pieces[pieces.size() - 1 - i];
    visit(piece.array, piece.range);
  });
}

void set_factors(kernels::GradStream& stream, const PendingFactors& factors) {
  if (factors.factor.defined()) stream.factor = host_value(factors.factor);
  if (factors.second_factor.defined()) stream.second_factor = host_value(factors.second_factor);
}

size_t num_ranges(int64_t count) { return static_cast<size_t>((count + kRange - 1) / kRange); }
size_t range_number(kernels::Range range) { return static_cast<size_t>(range.begin / kRange); }

GradTotals measure(const std::vector<GradArray>& gradients) {
  const kernels::KernelTable& table = cpu_kernels();
  const std::vector<Piece> pieces = cut(counts_of(gradients));
  std::vector<kernels::GradMeasure> measures(pieces.size());
  run(pieces, [&](size_t i) {
    measures[i] = table.measure(gradients[pieces[i].array].stream, pieces[i].range);
  });
  GradTotals totals;
  for (const kernels::GradMeasure& each : measures) {
    totals.sum_of_squares += each.sum_of_squares;
    totals.has_nonfinite |= each.has_nonfinite;
    totals.has_nan |= each.has_nan;
  }
  return totals;
}

void multiply(const std::vector<GradArray>& gradients) {
  const kernels::KernelTable& table = cpu_kernels();
  for_each_range(counts_of(gradients), [&](size_t array, kernels::Range range) {
    table.multiply(gradients[array].stream, range);
  });
}

}  // namespace torchamp::multi_tensor
