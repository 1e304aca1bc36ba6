// One block of kBlock8 elements in the registers of a warp: between memory of any Storage and eight
// numbers a thread. Every function is called by all 32 threads of a warp with the same stream and
// place, because some exchange values.

#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include <cuda_runtime.h>

#include "torchamp/kernels/code8.h"
#include "torchamp/kernels/convert.h"
#include "torchamp/kernels/storage.h"

namespace torchamp::kernels::cuda {
namespace {

constexpr unsigned kAllThreads = 0xFFFFFFFFU;
constexpr int kWarp = 32;
constexpr int kHeld = static_cast<int>(kBlock8) / kWarp;  // elements of a thread
constexpr int kRun = 4;  // in a row: 16 bytes of float32, and a warp reads 512 bytes at once
static_assert(kHeld == 2 * kRun);

// A block of a tensor and this thread's share of it: elements first(0) to first(0) + 3 and first(1)
// to first(1) + 3 of the block, where they are below count.
struct Place {
  int64_t begin;  // a multiple of kBlock8
  int count;      // 1 to kBlock8
  int thread;     // of the warp
  __device__ int first(int run) const { return kRun * thread + kRun * kWarp * run; }
  __device__ int element(int held) const { return first(held / kRun) + held % kRun; }
  __device__ bool has(int held) const { return element(held) < count; }
};

// ---- as they lie ----

// The unsigned words that hold a run: the widest loads and stores there are. Their intrinsics say
// that the memory is global, which a pointer read from a table does not.
template <size_t kBytes>
struct WordsOf {
  using Type = uint4;
};
template <>
struct WordsOf<4> {
  using Type = unsigned;
};
template <>
struct WordsOf<8> {
  using Type = uint2;
};

template <typename U>
__device__ __forceinline__ void load_run(const U* from, U (&to)[kRun]) {
  using Words = typename WordsOf<sizeof(U) * kRun>::Type;
  constexpr int kCount = sizeof(U) * kRun / sizeof(Words);
  Words words[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) words[i] = __ldca(reinterpret_cast<const Words*>(from) + i);
  memcpy(to, words, sizeof(to));
}

template <typename U>
__device__ __forceinline__ void store_run(const U (&from)[kRun], U* to) {
  using Words = typename WordsOf<sizeof(U) * kRun>::Type;
  constexpr int kCount = sizeof(U) * kRun / sizeof(Words);
  Words words[kCount];
  memcpy(words, from, sizeof(from));
#pragma unroll
  for (int i = 0; i < kCount; ++i) __stwb(reinterpret_cast<Words*>(to) + i, words[i]);
}

template <typename U>
__device__ __forceinline__ bool is_aligned(const U* block) {
  constexpr size_t kAlignment = sizeof(U) * kRun < 16 ? sizeof(U) * kRun : 16;
  return reinterpret_cast<uintptr_t>(block) % kAlignment == 0;
}

// What lies after the end reads as 0.
template <typename U>
__device__ __forceinline__ void load_raw(const U* block, const Place& place, U (&to)[kHeld]) {
  const bool aligned = is_aligned(block);
#pragma unroll
  for (int run = 0; run < 2; ++run) {
    const int first = place.first(run);
    if (aligned && first + kRun <= place.count) {
      U read[kRun];
      load_run(block + first, read);
#pragma unroll
      for (int i = 0; i < kRun; ++i) to[kRun * run + i] = read[i];
    } else {
#pragma unroll
      for (int i = 0; i < kRun; ++i) {
        to[kRun * run + i] = first + i < place.count ? block[first + i] : U(0);
      }
    }
  }
}

template <typename U>
__device__ __forceinline__ void store_raw(const U (&from)[kHeld], const Place& place, U* block) {
  const bool aligned = is_aligned(block);
#pragma unroll
  for (int run = 0; run < 2; ++run) {
    const int first = place.first(run);
    if (aligned && first + kRun <= place.count) {
      U written[kRun];
#pragma unroll
      for (int i = 0; i < kRun; ++i) written[i] = from[kRun * run + i];
      store_run(written, block + first);
    } else {
#pragma unroll
      for (int i = 0; i < kRun; ++i) {
        if (first + i < place.count) block[first + i] = from[kRun * run + i];
      }
    }
  }
}

template <typename U>
__device__ __forceinline__ U* block_at(void* data, const Place& place) {
  return static_cast<U*>(data) + place.begin;
}

// ---- 16 bits ----

__device__ __forceinline__ void load_bf16(void* data, const Place& place, float (&to)[kHeld]) {
  uint16_t raw[kHeld];
  load_raw(block_at<uint16_t>(data, place), place, raw);
#pragma unroll
  for (int i = 0; i < kHeld; ++i) to[i] = from_bf16(raw[i]);
}

__device__ __forceinline__ void load_f16(void* data, const Place& place, float (&to)[kHeld]) {
  uint16_t raw[kHeld];
  load_raw(block_at<uint16_t>(data, place), place, raw);
#pragma unroll
  for (int i = 0; i < kHeld; ++i) to[i] = from_f16(raw[i]);
}

__device__ __forceinline__ void store_bf16(const float (&from)[kHeld], const Place& place,
                                           void* data) {
  uint16_t raw[kHeld];
#pragma unroll
  for (int i = 0; i < kHeld; ++i) raw[i] = to_bf16(from[i]);
  store_raw(raw, place, block_at<uint16_t>(data, place));
}

__device__ __forceinline__ void store_f16(const float (&from)[kHeld], const Place& place,
                                          void* data) {
  uint16_t raw[kHeld];
#pragma unroll
  for (int i = 0; i < kHeld; ++i) raw[i] = to_f16(from[i]);
  store_raw(raw, place, block_at<uint16_t>(data, place));
}

__device__ __forceinline__ void store_bf16_by_chance(const float (&from)[kHeld], const Place& place,
                                                     const Stream& stream) {
  uint16_t raw[kHeld];
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const auto index = static_cast<uint64_t>(place.begin + place.element(i));
    raw[i] = to_bf16_by_chance(from[i], random_bits(stream.key, index));
  }
  store_raw(raw, place, block_at<uint16_t>(stream.data, place));
}

// A byte of ties belongs to 8 elements: to this thread and the one beside it.
__device__ __forceinline__ uint8_t* ties_byte(const Stream& stream, const Place& place, int run) {
  return stream.ties + (place.begin + place.first(run)) / 8;
}

__device__ __forceinline__ void load_split(const Stream& stream, const Place& place,
                                           float (&to)[kHeld]) {
  uint16_t weight[kHeld], low[kHeld];
  load_raw(block_at<uint16_t>(stream.data, place), place, weight);
  load_raw(block_at<uint16_t>(stream.rest, place), place, low);
#pragma unroll
  for (int run = 0; run < 2; ++run) {
    const int first = place.first(run);
    const unsigned ties = first < place.count ? *ties_byte(stream, place, run) >> (first % 8) : 0U;
#pragma unroll
    for (int i = 0; i < kRun; ++i) {
      to[kRun * run + i] =
          join({weight[kRun * run + i], low[kRun * run + i], ((ties >> i) & 1U) != 0});
    }
  }
}

__device__ __forceinline__ void store_split(const float (&from)[kHeld], const Place& place,
                                            const Stream& stream) {
  uint16_t weight[kHeld], low[kHeld];
#pragma unroll
  for (int run = 0; run < 2; ++run) {
    unsigned ties = 0;
#pragma unroll
    for (int i = 0; i < kRun; ++i) {
      const SplitFloat parts = split(from[kRun * run + i]);
      weight[kRun * run + i] = parts.weight;
      low[kRun * run + i] = parts.low;
      ties |= (parts.is_tie_from_below ? 1U : 0U) << i;
    }
    const unsigned beside = __shfl_xor_sync(kAllThreads, ties, 1);
    const int left = place.count - place.first(run);  // elements of the byte, up to 8
    if (place.thread % 2 == 0 && left > 0) {
      uint8_t* byte = ties_byte(stream, place, run);
      const unsigned bits = ties | (beside << kRun);
      const unsigned mine = left < 8 ? (1U << left) - 1U : 0xFFU;
      const unsigned others = left < 8 ? *byte & ~mine : 0U;  // bits after the end stay
      *byte = static_cast<uint8_t>((bits & mine) | others);
    }
  }
  store_raw(weight, place, block_at<uint16_t>(stream.data, place));
  store_raw(low, place, block_at<uint16_t>(stream.rest, place));
}

// The copies whose nearest float16 is still the weight; the weight itself where someone wrote it.
__device__ __forceinline__ void load_copy(const Stream& stream, const Place& place,
                                          float (&to)[kHeld]) {
  uint16_t weight[kHeld];
  load_raw(block_at<uint16_t>(stream.data, place), place, weight);
  load_raw(block_at<float>(stream.rest, place), place, to);
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    if (to_f16(to[i]) != weight[i]) to[i] = from_f16(weight[i]);
  }
}

// ---- 8 bits ----

__device__ __forceinline__ void load_block8(const Stream& stream, const Place& place,
                                            float (&to)[kHeld]) {
  uint8_t codes[kHeld];
  load_raw(block_at<uint8_t>(stream.data, place), place, codes);
  const float scale = static_cast<const float*>(stream.rest)[place.begin / kBlock8];
  const bool is_signed = stream.storage == Storage::kBlock8Signed;
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    if (is_signed) {
      const float magnitude = decode8<kSignedExponentBits>(codes[i] & 0x7FU) * scale;
      to[i] = (codes[i] & 0x80U) != 0 ? -magnitude : magnitude;
    } else {
      to[i] = decode8<kUnsignedExponentBits>(codes[i]) * scale;
    }
  }
}

__device__ __forceinline__ uint8_t code_of(float x, bool is_signed, float inverse,
                                           uint32_t random) {
  const uint32_t magnitude = bits_of(x) & 0x7FFFFFFFU;
  const float r = float_of(magnitude) * inverse;
  if (is_signed) {
    const uint32_t sign = (bits_of(x) >> 24) & 0x80U;
    return static_cast<uint8_t>(sign | encode8<kSignedExponentBits>(r, random));
  }
  const uint32_t code = encode8<kUnsignedExponentBits>(r, random);
  return static_cast<uint8_t>(code == 0 && magnitude != 0 ? 1 : code);
}

__device__ __forceinline__ void store_block8(const float (&from)[kHeld], const Place& place,
                                             const Stream& stream) {
  uint32_t largest = 0;  // of the magnitudes, as bits: these are in the same order
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const uint32_t magnitude = place.has(i) ? bits_of(from[i]) & 0x7FFFFFFFU : 0U;
    largest = magnitude > largest ? magnitude : largest;
  }
#pragma unroll
  for (int other = kWarp / 2; other > 0; other /= 2) {
    const uint32_t theirs = __shfl_xor_sync(kAllThreads, largest, other);
    largest = theirs > largest ? theirs : largest;
  }
  const bool is_lost = largest >= 0x7F800000U;  // inf or NaN; every element becomes NaN
  const float scale = is_lost ? float_of(0x7FC00000U) : scale8(float_of(largest));
  const float inverse = is_lost ? 0.0F : inverse_scale8(scale);
  const bool is_signed = stream.storage == Storage::kBlock8Signed;
  uint8_t codes[kHeld];
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const auto index = static_cast<uint64_t>(place.begin + place.element(i));
    const uint32_t random = random_bits(stream.key, index);
    codes[i] = is_lost ? uint8_t{1} : code_of(from[i], is_signed, inverse, random);
  }
  store_raw(codes, place, block_at<uint8_t>(stream.data, place));
  if (place.thread == 0) static_cast<float*>(stream.rest)[place.begin / kBlock8] = scale;
}

// ---- any storage ----

__device__ __forceinline__ void load(const Stream& stream, const Place& place, float (&to)[kHeld]) {
  switch (stream.storage) {
    case Storage::kF32:
      return load_raw(block_at<float>(stream.data, place), place, to);
    case Storage::kBf16:
    case Storage::kBf16Stochastic:
      return load_bf16(stream.data, place, to);
    case Storage::kF16:
      return load_f16(stream.data, place, to);
    case Storage::kBf16WithRest:
      return load_split(stream, place, to);
    case Storage::kF16WithCopy:
      return load_copy(stream, place, to);
    case Storage::kBlock8Signed:
    case Storage::kBlock8Unsigned:
      return load_block8(stream, place, to);
    case Storage::kF64:
    case Storage::kNone:
      break;
  }
#pragma unroll
  for (int i = 0; i < kHeld; ++i) to[i] = 0.0F;
}

__device__ __forceinline__ void load(const Stream& stream, const Place& place,
                                     double (&to)[kHeld]) {
  if (stream.storage == Storage::kF64) {
    return load_raw(block_at<double>(stream.data, place), place, to);
  }
#pragma unroll
  for (int i = 0; i < kHeld; ++i) to[i] = 0.0;
}

__device__ __forceinline__ void store(const float (&from)[kHeld], const Place& place,
                                      const Stream& stream) {
  switch (stream.storage) {
    case Storage::kF32:
      return store_raw(from, place, block_at<float>(stream.data, place));
    case Storage::kBf16:
      return store_bf16(from, place, stream.data);
    case Storage::kBf16Stochastic:
      return store_bf16_by_chance(from, place, stream);
    case Storage::kF16:
      return store_f16(from, place, stream.data);
    case Storage::kBf16WithRest:
      return store_split(from, place, stream);
    case Storage::kF16WithCopy:
      store_f16(from, place, stream.data);
      return store_raw(from, place, block_at<float>(stream.rest, place));
    case Storage::kBlock8Signed:
    case Storage::kBlock8Unsigned:
      return store_block8(from, place, stream);
    case Storage::kF64:
    case Storage::kNone:
      break;
  }
}

__device__ __forceinline__ void store(const double (&from)[kHeld], const Place& place,
                                      const Stream& stream) {
  if (stream.storage == Storage::kF64) {
    store_raw(from, place, block_at<double>(stream.data, place));
  }
}

}  // namespace
}  // namespace torchamp::kernels::cuda
