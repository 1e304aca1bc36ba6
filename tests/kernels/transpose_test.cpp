#include "torchamp/kernels/cpu/transpose.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

namespace torchamp::kernels {
namespace {

// All sizes around a vector and a cache line, and ranges of columns as threads take them.
TEST(Transpose16, MovesEveryNumberAndNothingElse) {
  constexpr uint16_t kGuard = 0xABCD;
  constexpr int64_t kRoom = 64;
  for (const int64_t rows : {1, 2, 3, 7, 8, 9, 15, 16, 31, 32, 33, 40, 41, 64, 97}) {
    for (const int64_t columns : {1, 2, 3, 7, 8, 9, 16, 31, 32, 33, 39, 40, 63, 64, 65, 100}) {
      std::vector<uint16_t> from(rows * columns), to(rows * columns + 2 * kRoom, kGuard);
      for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<uint16_t>(i * 40503 + 1);
      const Transpose16 matrix = {from.data(), to.data() + kRoom, rows, columns};
      for (int64_t begin = 0; begin < columns; begin += kTransposeColumns) {
        transpose(matrix, begin, std::min(begin + kTransposeColumns, columns));
      }
      bool is_right = true;
      for (int64_t i = 0; i < rows; ++i) {
        for (int64_t j = 0; j < columns; ++j) {
          is_right = is_right && to[kRoom + j * rows + i] == from[i * columns + j];
        }
      }
      for (int64_t i = 0; i < kRoom; ++i) {
        is_right = is_right && to[i] == kGuard && to[to.size() - 1 - i] == kGuard;
      }
      EXPECT_TRUE(is_right) << rows << "x" << columns;
    }
  }
}

}  // namespace
}  // namespace torchamp::kernels
