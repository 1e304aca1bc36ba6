// Lanes of the image kernels to and from any storage. Include after a lane_*.h.
#pragma once

#include "torchamp/kernels/cpu/image_ops.h"
#include "torchamp/kernels/cpu/table.h"

namespace torchamp::kernels {
namespace {
namespace image {

using L = Lane<float>;
constexpr int64_t kWidth = L::kWidth;

template <Storage kStorage>
L load(const void* from, int64_t i) {
  if constexpr (kStorage == Storage::kF32) return L::load(static_cast<const float*>(from) + i);
  if constexpr (kStorage == Storage::kBf16) {
    return L::from_bf16(static_cast<const uint16_t*>(from) + i);
  }
  if constexpr (kStorage == Storage::kF16) {
    return L::from_f16(static_cast<const uint16_t*>(from) + i);
  }
}

template <Storage kStorage>
void store(L x, void* to, int64_t i) {
  if constexpr (kStorage == Storage::kF32) x.store(static_cast<float*>(to) + i);
  if constexpr (kStorage == Storage::kBf16) x.to_bf16(static_cast<uint16_t*>(to) + i);
  if constexpr (kStorage == Storage::kF16) x.to_f16(static_cast<uint16_t*>(to) + i);
}

// Calls work.operator()<storage>().
template <typename Work>
void with_storage(Storage storage, const Work& work) {
  switch (storage) {
    case Storage::kF32:
      work.template operator()<Storage::kF32>();
      break;
    case Storage::kBf16:
      work.template operator()<Storage::kBf16>();
      break;
    default:
      work.template operator()<Storage::kF16>();
  }
}

// Calls work.operator()<lanes>(first channel) for groups of four lanes, then of one.
template <typename Work>
void for_each_group(int64_t channels, const Work& work) {
  int64_t c = 0;
  for (; c + 4 * kWidth <= channels; c += 4 * kWidth) work.template operator()<4>(c);
  for (; c < channels; c += kWidth) work.template operator()<1>(c);
}

}  // namespace image
}  // namespace
}  // namespace torchamp::kernels
