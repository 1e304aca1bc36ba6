#pragma once
// The reduction of a loss, as LibTorch's ops are given it. Internal.

#include <cstdint>

#include <ATen/core/Reduction.h>

namespace torchamp::ops::detail {

/// None, Mean or Sum; others are LibTorch's to refuse.
inline bool is_reduction(int64_t reduction) {
  return reduction == at::Reduction::None || reduction == at::Reduction::Mean ||
         reduction == at::Reduction::Sum;
}

}  // namespace torchamp::ops::detail
