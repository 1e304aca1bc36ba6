#pragma once
// The check that every Dataset::collate() begins with.

#include <cstdint>
#include <string>
#include <vector>

#include <c10/util/Exception.h>

namespace torchamp::train {

inline void check_indices(const std::vector<int64_t>& indices, int64_t size,
                          const std::string& name) {
  for (const int64_t index : indices) {
    TORCH_CHECK_INDEX(index >= 0 && index < size, "[collate] example ", index, " of '", name,
                      "' does not exist; 0 to ", size - 1, " is accepted.");
  }
}

}  // namespace torchamp::train
