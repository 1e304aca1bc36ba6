#pragma once
// What every Dataset::collate() begins with: the check of the indices, and the memory of the batch.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include "torchamp/train/data/dataset.h"

namespace torchamp::train {

inline void check_indices(const std::vector<int64_t>& indices, int64_t size,
                          const std::string& name) {
  for (const int64_t index : indices) {
    TORCH_CHECK_INDEX(index >= 0 && index < size, "[collate] example ", index, " of '", name,
                      "' does not exist; 0 to ", size - 1, " is accepted.");
  }
}

/// A batch of token windows to be written: input and target [rows, context], int64.
inline Batch empty_token_batch(size_t rows, int64_t context) {
  const auto empty = [&] { return at::empty({static_cast<int64_t>(rows), context}, at::kLong); };
  return {empty(), empty()};
}

}  // namespace torchamp::train
