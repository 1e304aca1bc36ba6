// Kernels of LAMB: moments and norms, the length of the step, which depends on the whole parameter,
// then the update.

#pragma once

#include "torchamp/kernels/cuda/threads.cuh"

namespace torchamp::kernels::cuda {
namespace {

template <typename T>
__device__ __forceinline__ bool is_exact(const Stream& stream) {
  return stream.storage == (sizeof(T) == 8 ? Storage::kF64 : Storage::kF32);
}

// Leaves the sums of squares of a chunk's weights and directions in the scratch.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    lamb_moments_chunks(Tables tables, int first_chunk, const float* found_inf,
                        const double* clip) {
  __shared__ ArraysRoom room;
  __shared__ double sums[kWarps];
  const int chunk_number = first_chunk + static_cast<int>(blockIdx.x);
  const Chunk chunk = tables.chunks[chunk_number];
  const Arrays& entry = tables.arrays[chunk.array];
  const Walk walk(chunk, entry.count);
  if (*found_inf != 0.0F) return write_back_only<T>(entry.grad, walk);
  const Arrays& arrays = share_with_keys(entry, tables.groups[entry.group].seed, room);
  const LambLanes<Lane<T>> c(tables.rules[chunk.array].lamb);
  const Factors<T> factors = factors_of<T>(arrays.grad, *clip);
  double weights = 0.0, directions = 0.0;
  for (int64_t begin = walk.first(); begin < walk.end(); begin += Walk::kStride) {
    const Place place = walk.at(begin);
    T grad[kHeld], param[kHeld], exp_avg[kHeld], exp_avg_sq[kHeld];
    load(arrays.param, place, param);
    load(arrays.state[0], place, exp_avg);
    load(arrays.state[1], place, exp_avg_sq);
    take_gradient(arrays.grad, factors, place, grad);
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      Lane<T> m{exp_avg[i]}, v{exp_avg_sq[i]};
      lamb_moments(c, Lane<T>{grad[i]}, m, v);
      exp_avg[i] = m.x;
      exp_avg_sq[i] = v.x;
    }
    store(exp_avg, place, arrays.state[0]);
    store(exp_avg_sq, place, arrays.state[1]);
    if (!is_exact<T>(arrays.state[0]) || !is_exact<T>(arrays.state[1])) {
      __syncwarp();  // the update will see rounded moments, so the norm does
      load(arrays.state[0], place, exp_avg);
      load(arrays.state[1], place, exp_avg_sq);
    }
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      if (!place.has(i)) continue;
      const double weight = static_cast<double>(param[i]);
      const double direction = static_cast<double>(
          lamb_direction(c, Lane<T>{param[i]}, Lane<T>{exp_avg[i]}, Lane<T>{exp_avg_sq[i]}).x);
      weights = ::fma(weight, weight, weights);
      directions = ::fma(direction, direction, directions);
    }
  }
  weights = block_sum(weights, sums);
  directions = block_sum(directions, sums);
  if (threadIdx.x == 0) {
    tables.sums[2 * static_cast<int64_t>(chunk_number)] = weights;
    tables.sums[2 * static_cast<int64_t>(chunk_number) + 1] = directions;
  }
}

// One array a block: the step's length, from the sums of all its chunks in a fixed order.
__global__ void __launch_bounds__(kThreads) lamb_lengths(Tables tables, const float* found_inf) {
  __shared__ double sums[kWarps];
  if (*found_inf != 0.0F) return;
  const Arrays& arrays = tables.arrays[blockIdx.x];
  const int64_t num_chunks = (arrays.count + kChunk - 1) / kChunk;
  double weights = 0.0, directions = 0.0;
  for (int64_t i = threadIdx.x; i < num_chunks; i += kThreads) {
    const int64_t chunk = arrays.first_chunk + i;
    weights = weights + tables.sums[2 * chunk];
    directions = directions + tables.sums[2 * chunk + 1];
  }
  weights = block_sum(weights, sums);
  directions = block_sum(directions, sums);
  if (threadIdx.x == 0) {
    Rule& rule = tables.rules[blockIdx.x];
    rule.lamb_step = lamb_step(rule.lr, weights, directions);
  }
}

// p <- p - step u
template <typename T>
__global__ void __launch_bounds__(kThreads)
    lamb_apply_chunks(Tables tables, int first_chunk, const float* found_inf) {
  __shared__ ArraysRoom room;
  if (*found_inf != 0.0F) return;
  const Chunk chunk = tables.chunks[first_chunk + static_cast<int>(blockIdx.x)];
  const Arrays& entry = tables.arrays[chunk.array];
  const Walk walk(chunk, entry.count);
  const Arrays& arrays = share_with_keys(entry, tables.groups[entry.group].seed, room);
  const Rule& rule = tables.rules[chunk.array];
  const LambLanes<Lane<T>> c(rule.lamb);
  const Lane<T> minus_step = Lane<T>::all(-rule.lamb_step);
  for (int64_t begin = walk.first(); begin < walk.end(); begin += Walk::kStride) {
    const Place place = walk.at(begin);
    T param[kHeld], exp_avg[kHeld], exp_avg_sq[kHeld];
    load(arrays.param, place, param);
    load(arrays.state[0], place, exp_avg);
    load(arrays.state[1], place, exp_avg_sq);
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const Lane<T> p{param[i]};
      const Lane<T> direction = lamb_direction(c, p, Lane<T>{exp_avg[i]}, Lane<T>{exp_avg_sq[i]});
      param[i] = fma(minus_step, direction, p).x;
    }
    store(param, place, arrays.param);
  }
}

}  // namespace
}  // namespace torchamp::kernels::cuda
