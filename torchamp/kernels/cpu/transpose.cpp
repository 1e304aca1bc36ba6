#include "torchamp/kernels/cpu/transpose.h"

#include <algorithm>
#include <cstring>

namespace torchamp::kernels {
namespace {

constexpr int64_t kLine = kTransposeColumns;  // numbers in a cache line
constexpr int64_t kEight = 8;                 // numbers in a vector, which every CPU has

using Eight = uint16_t __attribute__((vector_size(2 * kEight)));

Eight load(const uint16_t* from) {
  Eight eight;
  std::memcpy(&eight, from, sizeof eight);
  return eight;
}
void store(uint16_t* to, Eight eight) { std::memcpy(to, &eight, sizeof eight); }

// Rows 0 and 4, 1 and 5, ... number by number; three times is the transposed block.
void interleave(Eight (&rows)[kEight]) {
  Eight mixed[kEight];
  for (int64_t i = 0; i < 4; ++i) {
    mixed[2 * i] = __builtin_shufflevector(rows[i], rows[i + 4], 0, 8, 1, 9, 2, 10, 3, 11);
    mixed[2 * i + 1] = __builtin_shufflevector(rows[i], rows[i + 4], 4, 12, 5, 13, 6, 14, 7, 15);
  }
  std::memcpy(rows, mixed, sizeof mixed);
}

void transpose_eight(Eight (&rows)[kEight]) {
  interleave(rows);
  interleave(rows);
  interleave(rows);
}

// Where a group of eight begins: the last one reaches back over the group before it.
int64_t group_begin(int64_t i, int64_t end) { return std::min(i, end - kEight); }

// Rows `top` to `bottom` and columns `left` to `right`, eight of each at least and a line at most.
// Columns before `first` were done by others and are not written. By way of a buffer, so that each
// line of both matrices is touched once: lines a power of two apart would displace one another.
void transpose_block(const Transpose16& matrix, int64_t top, int64_t bottom, int64_t left,
                     int64_t right, int64_t first) {
  alignas(2 * kLine) uint16_t buffer[kLine * kLine];
  for (int64_t row = top; row < bottom; row += kEight) {
    const int64_t i = group_begin(row, bottom);
    for (int64_t column = left; column < right; column += kEight) {
      const int64_t j = group_begin(column, right);
      Eight rows[kEight];
      for (int64_t k = 0; k < kEight; ++k) {
        rows[k] = load(matrix.from + (i + k) * matrix.columns + j);
      }
      transpose_eight(rows);
      for (int64_t k = 0; k < kEight; ++k) {
        store(buffer + (j - left + k) * kLine + (i - top), rows[k]);
      }
    }
  }
  const int64_t count = bottom - top;
  for (int64_t j = first; j < right; ++j) {
    const uint16_t* const from = buffer + (j - left) * kLine;
    uint16_t* const to = matrix.to + j * matrix.rows + top;
    if (count == kLine) {
      std::memcpy(to, from, kLine * sizeof(uint16_t));
    } else {
      std::memcpy(to, from, static_cast<size_t>(count) * sizeof(uint16_t));
    }
  }
}

// Number by number, along the longer side.
void transpose_singly(const Transpose16& matrix, int64_t begin, int64_t end) {
  const auto [from, to, rows, columns] = matrix;
  if (rows < columns) {
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = begin; j < end; ++j) to[j * rows + i] = from[i * columns + j];
    }
  } else {
    for (int64_t j = begin; j < end; ++j) {
      for (int64_t i = 0; i < rows; ++i) to[j * rows + i] = from[i * columns + j];
    }
  }
}

}  // namespace

void transpose(const Transpose16& matrix, int64_t begin, int64_t end) {
  const int64_t rows = matrix.rows;
  if (std::min(rows, matrix.columns) < kEight) return transpose_singly(matrix, begin, end);
  for (int64_t first = begin; first < end; first += kLine) {
    const int64_t right = std::min(first + kLine, end);
    const int64_t left = std::min(first, right - kEight);
    for (int64_t row = 0; row < rows; row += kLine) {
      const int64_t bottom = std::min(row + kLine, rows);
      transpose_block(matrix, std::min(row, bottom - kEight), bottom, left, right, first);
    }
  }
}

}  // namespace torchamp::kernels
