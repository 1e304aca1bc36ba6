// Kernels that look at gradients and decide about the step.

#pragma once

#include "torchamp/kernels/cuda/threads.cuh"
#include "torchamp/kernels/formula/clip.h"
#include "torchamp/kernels/formula/power.h"

namespace torchamp::kernels::cuda {
namespace {

constexpr uint32_t kNonFinite = 1;
constexpr uint32_t kNan = 2;

// One chunk a block: the sum of squares and the flags of gradient * factor * second_factor. A
// thread adds its elements in order, then the block in a fixed one.
template <typename T>
__global__ void __launch_bounds__(kThreads) measure_chunks(Tables tables, int first_chunk) {
  __shared__ double sums[kWarps];
  __shared__ uint32_t flags[kWarps];
  const int chunk_number = first_chunk + static_cast<int>(blockIdx.x);
  const Chunk chunk = tables.chunks[chunk_number];
  const Arrays& arrays = tables.arrays[chunk.array];
  const Gradient grad = arrays.grad;
  const Factors<T> factors = factors_of<T>(grad, 1.0);
  const Walk walk(chunk, arrays.count);
  double sum = 0.0;
  uint32_t found = 0;
  for (int64_t begin = walk.first(); begin < walk.end(); begin += Walk::kStride) {
    T x[kHeld];
    load_gradient(grad, grad.measured, walk.at(begin), x);
    if (!factors.are_one()) factors.apply(x);
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {  // 0 after the end, but 0 * inf: a factor may be anything
      const double value = walk.at(begin).has(i) ? static_cast<double>(x[i]) : 0.0;
      sum = ::fma(value, value, sum);
      if constexpr (sizeof(T) == 8) {  // the square of a finite double may be inf
        if (!(value - value == 0.0)) found |= kNonFinite;
        if (value != value) found |= kNan;
      }
    }
  }
  sum = block_sum(sum, sums);
  if constexpr (sizeof(T) == 4) {
    if (!(sum - sum == 0.0)) found |= kNonFinite;
    if (sum != sum) found |= kNan;
  }
  found = block_or(found, flags);
  if (threadIdx.x == 0) {
    tables.sums[chunk_number] = sum;
    tables.flags[chunk_number] = found;
  }
}

__device__ __forceinline__ void make_rule(const Numbers& numbers, bool rounds_products,
                                          int64_t step, Method method, Rule& rule) {
  rule.lr = numbers.lr;
  if (method == Method::kSgd) {
    SgdRule sgd;
    sgd.weight_decay = numbers.weight_decay;
    sgd.momentum = numbers.momentum;
    sgd.one_minus_dampening = 1.0 - numbers.dampening;
    sgd.minus_lr = -numbers.lr;
    sgd.nesterov = numbers.nesterov;
    sgd.rounds_products = rounds_products;
    sgd.is_first = step == 1;
    rule.sgd = sgd;
    return;
  }
  const double beta1_to_t = integer_power(numbers.beta1, step);
  const double beta2_to_t = integer_power(numbers.beta2, step);
  if (method == Method::kAdam) {
    rule.adam = adam_rule_of_powers(numbers.lr, numbers.beta1, numbers.beta2, numbers.eps,
                                    numbers.weight_decay, numbers.decoupled, numbers.amsgrad,
                                    beta1_to_t, beta2_to_t);
    rule.adam.rounds_products = rounds_products;
  } else {
    rule.lamb = lamb_rule_of_powers(numbers.beta1, numbers.beta2, numbers.eps, numbers.weight_decay,
                                    beta1_to_t, beta2_to_t);
  }
}

// One block: what all chunks found, what follows from it, and every array's count and rule.
__global__ void __launch_bounds__(kThreads)
    finish_step(Tables tables, Method method, Decision decision) {
  __shared__ double sums[kWarps];
  __shared__ uint32_t flags[kWarps];
  double sum = 0.0;
  uint32_t found = 0;
  if (decision.measured) {
    for (int i = static_cast<int>(threadIdx.x); i < tables.num_chunks; i += kThreads) {
      sum = sum + tables.sums[i];
      found |= tables.flags[i];
    }
    sum = block_sum(sum, sums);
    found = block_or(found, flags);
  }
  bool is_skipped = decision.checked && (found & kNonFinite) != 0;
  if (decision.incoming_found_inf != nullptr && *decision.incoming_found_inf != 0.0F) {
    is_skipped = true;
  }
  if (threadIdx.x == 0) {
    const double double_norm = ::sqrt(sum);
    const auto norm = static_cast<float>(double_norm);
    double clip = 1.0;
    if (decision.clips) {
      clip = decision.has_doubles ? clip_factor(double_norm, decision.max_norm)
                                  : static_cast<double>(clip_factor(norm, decision.max_norm));
    }
    *decision.found_inf = is_skipped ? 1.0F : 0.0F;
    *decision.clip = clip;
    if (decision.measured) {
      *decision.norm = norm;
      *decision.double_norm = double_norm;
      *decision.has_nan = (found & kNan) != 0;
    }
  }
  if (is_skipped) return;
  for (int i = static_cast<int>(threadIdx.x); i < tables.num_arrays; i += kThreads) {
    const Arrays& arrays = tables.arrays[i];
    const int64_t step = *arrays.steps + 1;
    *arrays.steps = step;
    make_rule(tables.groups[arrays.group], arrays.rounds_products, step, method, tables.rules[i]);
  }
}

// x <- x * factor * second_factor
template <typename T>
__global__ void __launch_bounds__(kThreads) multiply_chunks(Tables tables, int first_chunk) {
  const Chunk chunk = tables.chunks[first_chunk + static_cast<int>(blockIdx.x)];
  const Arrays& arrays = tables.arrays[chunk.array];
  Gradient grad = arrays.grad;
  grad.write_back = true;
  write_back_only<T>(grad, Walk(chunk, arrays.count));
}

}  // namespace
}  // namespace torchamp::kernels::cuda
