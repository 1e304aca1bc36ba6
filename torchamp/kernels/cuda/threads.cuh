// What a thread block does together: sums in a fixed order, and a table's entry that all threads
// read.

#pragma once

#include "torchamp/kernels/cuda/lane.h"
#include "torchamp/kernels/cuda/step.h"
#include "torchamp/kernels/cuda/warp_block.cuh"

namespace torchamp::kernels::cuda {
namespace {

constexpr int kThreads = 256;  // 8 warps, each with a block of kBlock8 at a time
constexpr int kWarps = kThreads / kWarp;
static_assert(kChunk % (kWarps * kBlock8) == 0);

// Sums over a warp; all threads get the same bits, since a + b is b + a.
__device__ __forceinline__ double warp_sum(double x) {
#pragma unroll
  for (int other = kWarp / 2; other > 0; other /= 2) {
    x = x + __shfl_xor_sync(kAllThreads, x, other);
  }
  return x;
}

__device__ __forceinline__ uint32_t warp_or(uint32_t x) {
#pragma unroll
  for (int other = kWarp / 2; other > 0; other /= 2) {
    x |= __shfl_xor_sync(kAllThreads, x, other);
  }
  return x;
}

// Over a block of kThreads: warps by a tree, then one after the other. `room` holds kWarps.
__device__ __forceinline__ double block_sum(double x, double* room) {
  x = warp_sum(x);
  __syncthreads();  // the room may still be read from the last call
  if (threadIdx.x % kWarp == 0) room[threadIdx.x / kWarp] = x;
  __syncthreads();
  double sum = 0.0;
  for (int warp = 0; warp < kWarps; ++warp) sum = sum + room[warp];
  return sum;
}

__device__ __forceinline__ uint32_t block_or(uint32_t x, uint32_t* room) {
  x = warp_or(x);
  __syncthreads();
  if (threadIdx.x % kWarp == 0) room[threadIdx.x / kWarp] = x;
  __syncthreads();
  uint32_t all = 0;
  for (int warp = 0; warp < kWarps; ++warp) all |= room[warp];
  return all;
}

// The blocks of one warp in a chunk, in order: begin at first(), go on by kStride while < end().
struct Walk {
  int64_t chunk_begin;
  int64_t chunk_end;

  __device__ Walk(const Chunk& chunk, int64_t count)
      : chunk_begin(chunk.index * kChunk),
        chunk_end(chunk_begin + kChunk < count ? chunk_begin + kChunk : count) {}
  static constexpr int64_t kStride = kWarps * kBlock8;
  __device__ int64_t first() const {
    return chunk_begin + static_cast<int64_t>(threadIdx.x / kWarp) * kBlock8;
  }
  __device__ int64_t end() const { return chunk_end; }
  __device__ Place at(int64_t begin) const {
    const int64_t left = chunk_end - begin;
    return {begin, static_cast<int>(left < kBlock8 ? left : kBlock8),
            static_cast<int>(threadIdx.x % kWarp)};
  }
};

// Memory that a block shares for one Arrays; a type with member initializers cannot be __shared__.
struct alignas(16) ArraysRoom {
  unsigned char bytes[sizeof(Arrays)];
};

// Copies an entry of the table into shared memory, where reading it costs no register.
__device__ __forceinline__ Arrays& share(const Arrays& from, ArraysRoom& room) {
  static_assert(sizeof(Arrays) % sizeof(uint32_t) == 0);
  const auto* words = reinterpret_cast<const uint32_t*>(&from);
  auto* to = reinterpret_cast<uint32_t*>(room.bytes);
  for (int i = static_cast<int>(threadIdx.x); i < static_cast<int>(sizeof(Arrays) / 4);
       i += kThreads) {
    to[i] = words[i];
  }
  __syncthreads();
  return *reinterpret_cast<Arrays*>(room.bytes);
}

// The same, with the keys of this step's chance; steps have been raised already.
__device__ __forceinline__ Arrays& share_with_keys(const Arrays& from, uint64_t seed,
                                                   ArraysRoom& room) {
  Arrays& arrays = share(from, room);
  if (threadIdx.x < 4) {
    Stream& stream = threadIdx.x < 3 ? arrays.state[threadIdx.x] : arrays.param;
    const auto steps_before = static_cast<uint64_t>(*arrays.steps - 1);
    stream.key = key_of_stream(seed, steps_before, arrays.number, threadIdx.x);
  }
  __syncthreads();
  return arrays;
}

// ---- gradients ----

template <typename T>
__device__ __forceinline__ T factor_at(const float* factor) {
  return factor != nullptr ? static_cast<T>(*factor) : T(1);
}

__device__ __forceinline__ void load_gradient(const Gradient& grad, void* data, const Place& place,
                                              float (&to)[kHeld]) {
  switch (grad.storage) {
    case Storage::kBf16:
      return load_bf16(data, place, to);
    case Storage::kF16:
      return load_f16(data, place, to);
    default:
      return load_raw(block_at<float>(data, place), place, to);
  }
}

__device__ __forceinline__ void load_gradient(const Gradient& /*grad*/, void* data,
                                              const Place& place, double (&to)[kHeld]) {
  load_raw(block_at<double>(data, place), place, to);
}

__device__ __forceinline__ void store_gradient(const float (&from)[kHeld], const Gradient& grad,
                                               const Place& place) {
  switch (grad.storage) {
    case Storage::kBf16:
      return store_bf16(from, place, grad.data);
    case Storage::kF16:
      return store_f16(from, place, grad.data);
    default:
      return store_raw(from, place, block_at<float>(grad.data, place));
  }
}

__device__ __forceinline__ void store_gradient(const double (&from)[kHeld], const Gradient& grad,
                                               const Place& place) {
  store_raw(from, place, block_at<double>(grad.data, place));
}

// x * first * second; factors of 1 leave every bit as it is.
template <typename T>
struct Factors {
  T first;
  T second;
  __device__ bool are_one() const { return first == T(1) && second == T(1); }
  __device__ void apply(T (&x)[kHeld]) const {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) x[i] = x[i] * first * second;
  }
};

// The factors of a gradient; `clip` is multiplied into the second one.
template <typename T>
__device__ __forceinline__ Factors<T> factors_of(const Gradient& grad, double clip) {
  const T second = factor_at<T>(grad.second_factor) * static_cast<T>(clip);
  return {factor_at<T>(grad.factor), second};
}

// The gradient as the update sees it, written back where that is asked for.
template <typename T>
__device__ __forceinline__ void take_gradient(const Gradient& grad, const Factors<T>& factors,
                                              const Place& place, T (&to)[kHeld]) {
  load_gradient(grad, grad.data, place, to);
  if (factors.are_one()) return;
  factors.apply(to);
  if (grad.write_back) store_gradient(to, grad, place);
}

// All that a skipped step does to a chunk.
template <typename T>
__device__ __forceinline__ void write_back_only(const Gradient& grad, const Walk& walk) {
  const Factors<T> factors = factors_of<T>(grad, 1.0);
  if (!grad.write_back || factors.are_one()) return;
  for (int64_t begin = walk.first(); begin < walk.end(); begin += Walk::kStride) {
    T x[kHeld];
    take_gradient(grad, factors, walk.at(begin), x);
  }
}

}  // namespace
}  // namespace torchamp::kernels::cuda
