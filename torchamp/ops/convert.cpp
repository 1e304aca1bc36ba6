#include "torchamp/ops/convert.h"

#include <algorithm>
#include <cstdint>

#include <ATen/Parallel.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided.h>
#include <c10/util/SmallVector.h>

#include "torchamp/kernels/cpu/table.h"

namespace torchamp::ops::detail {
namespace {

constexpr int64_t kChunk = 4096;      // elements, a multiple of kernels::kBlock8
constexpr int64_t kGrain = 8;         // chunks: 32768 elements take about 10 us
constexpr int64_t kShortestRow = 16;  // one lane of AVX-512; shorter rows go to LibTorch's copy

using Convert = void (*)(const void* from, void* to, int64_t begin, int64_t end);

template <kernels::Storage storage>
void widen(const void* from, void* to, int64_t begin, int64_t end) {
  kernels::Stream stream;
  stream.storage = storage;
  stream.data = const_cast<void*>(from);
  kernels::cpu_table().read(stream, {begin, end}, static_cast<float*>(to) + begin);
}

template <kernels::Storage storage>
void round(const void* from, void* to, int64_t begin, int64_t end) {
  kernels::Stream stream;
  stream.storage = storage;
  stream.data = to;
  kernels::cpu_table().write(stream, {begin, end}, static_cast<const float*>(from) + begin);
}

Convert widening_of(at::ScalarType dtype) {
  return dtype == at::kHalf ? widen<kernels::Storage::kF16> : widen<kernels::Storage::kBf16>;
}
Convert rounding_to(at::ScalarType dtype) {
  return dtype == at::kHalf ? round<kernels::Storage::kF16> : round<kernels::Storage::kBf16>;
}

void convert_run(Convert convert, const void* from, void* to, int64_t count) {
  if (count <= kChunk * kGrain) {
    convert(from, to, 0, count);
    return;
  }
  at::parallel_for(0, (count + kChunk - 1) / kChunk, kGrain, [&](int64_t begin, int64_t end) {
    convert(from, to, begin * kChunk, std::min(end * kChunk, count));
  });
}

// Rows along the last dimension, which has stride 1 on both sides.
void convert_rows(Convert convert, const at::Tensor& from, const at::Tensor& to) {
  const int64_t length = from.size(-1);
  const int64_t rows = from.numel() / length;
  const int64_t outer = from.dim() - 1;
  const auto* source = static_cast<const char*>(from.const_data_ptr());
  auto* target = static_cast<char*>(to.mutable_data_ptr());
  const auto from_size = static_cast<int64_t>(from.element_size());
  const auto to_size = static_cast<int64_t>(to.element_size());
  const auto sizes = from.sizes(), from_strides = from.strides(), to_strides = to.strides();
  const int64_t grain = std::max<int64_t>(1, kChunk * kGrain / length);
  at::parallel_for(0, rows, grain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      int64_t rest = row, from_offset = 0, to_offset = 0;
      for (int64_t i = outer - 1; i >= 0; --i) {
        const int64_t index = rest % sizes[i];
        rest /= sizes[i];
        from_offset += index * from_strides[i];
        to_offset += index * to_strides[i];
      }
      convert(source + from_offset * from_size, target + to_offset * to_size, 0, length);
    }
  });
}

bool has_rows(const at::Tensor& tensor) {
  return tensor.dim() > 0 && tensor.stride(-1) == 1 && tensor.size(-1) >= kShortestRow;
}

void convert_into(Convert convert, const at::Tensor& from, const at::Tensor& to) {
  if (from.numel() == 0) return;
  if (from.is_non_overlapping_and_dense() && from.strides() == to.strides()) {
    convert_run(convert, from.const_data_ptr(), to.mutable_data_ptr(), from.numel());
  } else if (has_rows(from) && has_rows(to)) {
    convert_rows(convert, from, to);
  } else {
    to.copy_(from);
  }
}

at::Tensor converted(Convert convert, const at::Tensor& from, at::ScalarType dtype) {
  const auto options = from.options().dtype(dtype);
  at::Tensor to = from.is_non_overlapping_and_dense()
                      ? at::empty_strided(from.sizes(), from.strides(), options)
                      : at::empty_like(from, options, c10::MemoryFormat::Preserve);
  convert_into(convert, from, to);
  return to;
}

}  // namespace

at::Tensor to_float(const at::Tensor& tensor) {
  if (!tensor.defined() || !is_16_bit(tensor.scalar_type())) return tensor;
  return converted(widening_of(tensor.scalar_type()), tensor, at::kFloat);
}

at::Tensor round_to(at::ScalarType dtype, const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.scalar_type() != at::kFloat) return tensor;
  return converted(rounding_to(dtype), tensor, dtype);
}

void store_rounded(const at::Tensor& from, const at::Tensor& to) {
  convert_into(rounding_to(to.scalar_type()), from, to);
}

}  // namespace torchamp::ops::detail
