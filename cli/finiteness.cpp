#include "cli/finiteness.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include "cli/pieces.h"

namespace torchamp::cli {
namespace {

// Magnitudes of floats are in the order of their bits, infinity and then the NaNs after all others.
// `to_double` makes a number of such bits.
template <typename Bits, typename ToDouble>
Finiteness look(const Bits* values, int64_t count, Bits infinity, ToDouble to_double) {
  constexpr Bits kMagnitude = std::numeric_limits<Bits>::max();  // all but the sign
  Bits largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    const auto magnitude = static_cast<Bits>(values[i] & kMagnitude);
    largest = std::max(largest, magnitude);
  }
  Finiteness result;
  if (largest >= infinity) {  // seldom; the loop above stays simple enough for vectors
    largest = 0;
    for (int64_t i = 0; i < count; ++i) {
      const auto magnitude = static_cast<Bits>(values[i] & kMagnitude);
      if (magnitude < infinity) {
        largest = std::max(largest, magnitude);
      } else {
        ++(magnitude == infinity ? result.num_inf : result.num_nan);
      }
    }
  }
  result.max_abs = to_double(largest);
  return result;
}

// Of the 8-bit formats, which have infinities and NaNs of their own kinds, and all others.
Finiteness look(const at::Tensor& doubles) {
  Finiteness result;
  const double* values = doubles.const_data_ptr<double>();
  for (int64_t i = 0; i < doubles.numel(); ++i) {
    const double magnitude = std::fabs(values[i]);
    if (std::isfinite(magnitude)) {
      result.max_abs = std::max(result.max_abs, magnitude);
    } else {
      ++(std::isnan(magnitude) ? result.num_nan : result.num_inf);
    }
  }
  return result;
}

Finiteness look_at(const at::Tensor& piece) {
  const at::Tensor row = as_row(piece);
  const int64_t count = row.numel();
  switch (row.scalar_type()) {
    case at::kFloat:
      return look<int32_t>(row.view(at::kInt).const_data_ptr<int32_t>(), count, 0x7f800000,
                           [](int32_t bits) { return std::bit_cast<float>(bits); });
    case at::kDouble:
      return look<int64_t>(row.view(at::kLong).const_data_ptr<int64_t>(), count, 0x7ff0000000000000,
                           [](int64_t bits) { return std::bit_cast<double>(bits); });
    case at::kHalf:
      return look<int16_t>(row.view(at::kShort).const_data_ptr<int16_t>(), count, 0x7c00,
                           [](int16_t bits) { return float{std::bit_cast<c10::Half>(bits)}; });
    case at::kBFloat16:
      return look<int16_t>(row.view(at::kShort).const_data_ptr<int16_t>(), count, 0x7f80,
                           [](int16_t bits) { return float{std::bit_cast<c10::BFloat16>(bits)}; });
    default:
      return look(as_doubles(row));
  }
}

}  // namespace

std::vector<Finiteness> finiteness(const std::vector<at::Tensor>& tensors) {
  struct Job {
    size_t tensor;
    at::Tensor piece;
    Finiteness found;
  };
  std::vector<Job> jobs;
  std::vector<int64_t> folds;
  for (size_t i = 0; i < tensors.size(); ++i) {
    std::optional<Pieces> pieces = pieces_of({tensors[i]});
    if (!pieces) pieces = pieces_of({reach_of(tensors[i])});
    folds.push_back(pieces->fold);
    for (auto& piece : pieces->all) jobs.push_back({i, std::move(piece.front()), {}});
  }
  in_threads(static_cast<int64_t>(jobs.size()),
             [&](int64_t i) { jobs[i].found = look_at(jobs[i].piece); });
  std::vector<Finiteness> result(tensors.size());
  for (const Job& job : jobs) {
    Finiteness& all = result[job.tensor];
    all.num_nan += job.found.num_nan * folds[job.tensor];
    all.num_inf += job.found.num_inf * folds[job.tensor];
    all.max_abs = std::max(all.max_abs, job.found.max_abs);
  }
  return result;
}

}  // namespace torchamp::cli
