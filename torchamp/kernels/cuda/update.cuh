// Kernels of Adam and SGD: one chunk a block.

#pragma once

#include "torchamp/kernels/cuda/threads.cuh"

namespace torchamp::kernels::cuda {
namespace {

template <Decay kDecay, bool kAmsgrad, typename T>
__device__ __forceinline__ void adam_elements(const AdamLanes<Lane<T>>& c, const T (&grad)[kHeld],
                                              T (&param)[kHeld], T (&exp_avg)[kHeld],
                                              T (&exp_avg_sq)[kHeld], T (&max_exp_avg_sq)[kHeld]) {
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    Lane<T> p{param[i]}, m{exp_avg[i]}, v{exp_avg_sq[i]}, v_max{max_exp_avg_sq[i]};
    const Lane<T> root = adam_moments<kDecay, kAmsgrad>(c, Lane<T>{grad[i]}, p, m, v, v_max);
    p = adam_apply(c, p, m, sqrt(root));
    param[i] = p.x;
    exp_avg[i] = m.x;
    exp_avg_sq[i] = v.x;
    max_exp_avg_sq[i] = v_max.x;
  }
}

template <bool kAmsgrad, typename T>
__device__ __forceinline__ void adam_elements(const AdamRule& rule, const AdamLanes<Lane<T>>& c,
                                              const T (&grad)[kHeld], T (&param)[kHeld],
                                              T (&exp_avg)[kHeld], T (&exp_avg_sq)[kHeld],
                                              T (&max_exp_avg_sq)[kHeld]) {
  if (!rule.has_decay) {
    adam_elements<Decay::kNone, kAmsgrad>(c, grad, param, exp_avg, exp_avg_sq, max_exp_avg_sq);
  } else if (rule.decoupled) {
    adam_elements<Decay::kDecoupled, kAmsgrad>(c, grad, param, exp_avg, exp_avg_sq, max_exp_avg_sq);
  } else {
    adam_elements<Decay::kInGradient, kAmsgrad>(c, grad, param, exp_avg, exp_avg_sq,
                                                max_exp_avg_sq);
  }
}

// `kSomeAmsgrad`: arrays with amsgrad may be among them; without it their registers are saved.
template <typename T, bool kSomeAmsgrad>
__global__ void __launch_bounds__(kThreads)
    adam_chunks(Tables tables, int first_chunk, const float* found_inf, const double* clip) {
  __shared__ ArraysRoom room;
  const Chunk chunk = tables.chunks[first_chunk + static_cast<int>(blockIdx.x)];
  const Arrays& entry = tables.arrays[chunk.array];
  const Walk walk(chunk, entry.count);
  if (*found_inf != 0.0F) return write_back_only<T>(entry.grad, walk);
  const Arrays& arrays = share_with_keys(entry, tables.groups[entry.group].seed, room);
  const AdamRule& rule = tables.rules[chunk.array].adam;
  const AdamLanes<Lane<T>> c(rule);
  const Factors<T> factors = factors_of<T>(arrays.grad, *clip);
  const bool amsgrad = kSomeAmsgrad && rule.amsgrad;
  for (int64_t begin = walk.first(); begin < walk.end(); begin += Walk::kStride) {
    const Place place = walk.at(begin);
    T grad[kHeld], param[kHeld], exp_avg[kHeld], exp_avg_sq[kHeld], max_exp_avg_sq[kHeld];
    load(arrays.param, place, param);
    load(arrays.state[0], place, exp_avg);
    load(arrays.state[1], place, exp_avg_sq);
    take_gradient(arrays.grad, factors, place, grad);
    if (amsgrad) {
      load(arrays.state[2], place, max_exp_avg_sq);
      adam_elements<true>(rule, c, grad, param, exp_avg, exp_avg_sq, max_exp_avg_sq);
      store(max_exp_avg_sq, place, arrays.state[2]);
    } else {
      T unused[kHeld] = {};
      adam_elements<false>(rule, c, grad, param, exp_avg, exp_avg_sq, unused);
    }
    store(param, place, arrays.param);
    store(exp_avg, place, arrays.state[0]);
    store(exp_avg_sq, place, arrays.state[1]);
  }
}

template <bool kDecay, bool kMomentum, typename T>
__device__ __forceinline__ void sgd_elements(const SgdRule& rule, const SgdLanes<Lane<T>>& c,
                                             const T (&grad)[kHeld], T (&param)[kHeld],
                                             T (&momentum_buffer)[kHeld]) {
  const bool is_first = rule.is_first, nesterov = rule.nesterov;
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    Lane<T> p{param[i]}, buffer{momentum_buffer[i]};
    sgd_apply<kDecay, kMomentum>(c, is_first, nesterov, Lane<T>{grad[i]}, p, buffer);
    param[i] = p.x;
    momentum_buffer[i] = buffer.x;
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    sgd_chunks(Tables tables, int first_chunk, const float* found_inf, const double* clip) {
  __shared__ ArraysRoom room;
  const Chunk chunk = tables.chunks[first_chunk + static_cast<int>(blockIdx.x)];
  const Arrays& entry = tables.arrays[chunk.array];
  const Walk walk(chunk, entry.count);
  if (*found_inf != 0.0F) return write_back_only<T>(entry.grad, walk);
  const Arrays& arrays = share_with_keys(entry, tables.groups[entry.group].seed, room);
  const SgdRule rule = tables.rules[chunk.array].sgd;
  const SgdLanes<Lane<T>> c(rule);
  const Factors<T> factors = factors_of<T>(arrays.grad, *clip);
  const bool decays = rule.weight_decay != 0.0, has_momentum = rule.momentum != 0.0;
  for (int64_t begin = walk.first(); begin < walk.end(); begin += Walk::kStride) {
    const Place place = walk.at(begin);
    T grad[kHeld], param[kHeld], momentum_buffer[kHeld] = {};
    load(arrays.param, place, param);
    if (has_momentum) load(arrays.state[0], place, momentum_buffer);
    take_gradient(arrays.grad, factors, place, grad);
    if (decays && has_momentum) {
      sgd_elements<true, true>(rule, c, grad, param, momentum_buffer);
    } else if (decays) {
      sgd_elements<true, false>(rule, c, grad, param, momentum_buffer);
    } else if (has_momentum) {
      sgd_elements<false, true>(rule, c, grad, param, momentum_buffer);
    } else {
      sgd_elements<false, false>(rule, c, grad, param, momentum_buffer);
    }
    store(param, place, arrays.param);
    if (has_momentum) store(momentum_buffer, place, arrays.state[0]);
  }
}

}  // namespace
}  // namespace torchamp::kernels::cuda
