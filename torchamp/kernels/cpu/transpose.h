#pragma once
// A matrix of 16-bit numbers transposed: images between (C, H, W) and (H, W, C).

#include <cstdint>

namespace torchamp::kernels {

/// to[j * rows + i] = from[i * columns + j] for all i and for columns `begin` to `end`, so that
/// threads may share a matrix. `begin` is a multiple of kTransposeColumns; so is `end`, unless it
/// is `columns`. `from` and `to` do not overlap.
struct Transpose16 {
  const uint16_t* from = nullptr;
  uint16_t* to = nullptr;
  int64_t rows = 0;
  int64_t columns = 0;
};
inline constexpr int64_t kTransposeColumns = 32;  // a cache line
void transpose(const Transpose16& matrix, int64_t begin, int64_t end);

}  // namespace torchamp::kernels
