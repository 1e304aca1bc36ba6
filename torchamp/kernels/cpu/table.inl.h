// The loops of a KernelTable over Lane<float> and Lane<double>. Include once in a file, after a
// lane_*.h; everything has internal linkage.
//
// A range is worked through in blocks that stay in the first-level cache. What is not float32 (or
// double, with double arithmetic) is converted into a buffer there, so a formula sees whole lanes
// of one type; a block whose length is no multiple of 16 goes through buffers too, so no lane is
// cut.

#include <cstring>

#include "torchamp/kernels/convert.h"
#include "torchamp/kernels/cpu/block8.inl.h"
#include "torchamp/kernels/cpu/image_ops.inl.h"
#include "torchamp/kernels/cpu/row_ops.inl.h"
#include "torchamp/kernels/cpu/table.h"
//
#include "torchamp/kernels/cpu/product.inl.h"

namespace torchamp::kernels {
namespace {

constexpr int kBlock =
    512;  // 5 arrays of float32 = 10 KiB; bench/phase_optimizer: 256 to 1024 alike
static_assert(kBlock % kBlock8 == 0);

constexpr int round_up_16(int n) { return (n + 15) / 16 * 16; }

template <typename T>
T* at(const Stream& stream, int64_t i) {
  return static_cast<T*>(stream.data) + i;
}

template <typename T>
constexpr Storage direct_storage() {
  return sizeof(T) == 8 ? Storage::kF64 : Storage::kF32;
}

// ---- between storage and buffers ----

void load_16bit(const uint16_t* from, bool is_bf16, int n, float* to) {
  int i = 0;
  for (; i + Lane<float>::kWidth <= n; i += Lane<float>::kWidth) {
    (is_bf16 ? Lane<float>::from_bf16(from + i) : Lane<float>::from_f16(from + i)).store(to + i);
  }
  for (; i < n; ++i) to[i] = is_bf16 ? from_bf16(from[i]) : from_f16(from[i]);
}

void store_16bit(const float* from, bool is_bf16, int n, uint16_t* to) {
  int i = 0;
  for (; i + Lane<float>::kWidth <= n; i += Lane<float>::kWidth) {
    const auto lane = Lane<float>::load(from + i);
    is_bf16 ? lane.to_bf16(to + i) : lane.to_f16(to + i);
  }
  for (; i < n; ++i) to[i] = is_bf16 ? to_bf16(from[i]) : to_f16(from[i]);
}

void store_bf16_by_chance(const float* from, const Stream& stream, int64_t begin, int n) {
  auto* to = at<uint16_t>(stream, begin);
  int i = 0;
  for (; i + Lane<float>::kWidth <= n; i += Lane<float>::kWidth) {
    Lane<float>::load(from + i).to_bf16_by_chance(to + i, stream.key, begin + i);
  }
  for (; i < n; ++i) to[i] = to_bf16_by_chance(from[i], random_bits(stream.key, begin + i));
}

template <typename L = Lane<float>>
void load_split(const Stream& stream, int64_t begin, int n, float* to) {
  const auto* weight = at<uint16_t>(stream, begin);
  const auto* low = static_cast<const uint16_t*>(stream.rest) + begin;
  const uint8_t* ties = stream.ties + begin / 8;
  int i = 0;
  if constexpr (L::kWidth > 1) {
    for (; i + 16 <= n; i += 16) L::join16(weight + i, low + i, ties + i / 8, to + i);
  }
  for (; i < n; ++i) {
    to[i] = join({weight[i], low[i], ((ties[i / 8] >> (i % 8)) & 1) != 0});
  }
}

template <typename L = Lane<float>>
void store_split(const float* from, const Stream& stream, int64_t begin, int n) {
  auto* weight = at<uint16_t>(stream, begin);
  auto* low = static_cast<uint16_t*>(stream.rest) + begin;
  uint8_t* ties = stream.ties + begin / 8;
  int i = 0;
  if constexpr (L::kWidth > 1) {
    for (; i + 16 <= n; i += 16) L::split16(from + i, weight + i, low + i, ties + i / 8);
  }
  for (; i < n; ++i) {
    const SplitFloat parts = split(from[i]);
    weight[i] = parts.weight;
    low[i] = parts.low;
    const int bit = 1 << (i % 8);
    ties[i / 8] =
        static_cast<uint8_t>(parts.is_tie_from_below ? ties[i / 8] | bit : ties[i / 8] & ~bit);
  }
}

// The copies whose nearest float16 is still the weight; the weight itself where someone wrote it.
void load_copy(const Stream& stream, int64_t begin, int n, float* to) {
  const auto* weight = at<uint16_t>(stream, begin);
  const auto* copy = static_cast<const float*>(stream.rest) + begin;
  uint16_t nearest[kBlock];
  store_16bit(copy, /*is_bf16=*/false, n, nearest);
  if (memcmp(nearest, weight, sizeof(uint16_t) * static_cast<size_t>(n)) == 0) {
    memcpy(to, copy, sizeof(float) * static_cast<size_t>(n));
    return;
  }
  for (int i = 0; i < n; ++i) to[i] = nearest[i] == weight[i] ? copy[i] : from_f16(weight[i]);
}

void load(const Stream& stream, int64_t begin, int n, float* to) {
  switch (stream.storage) {
    case Storage::kF32:
      memcpy(to, at<float>(stream, begin), sizeof(float) * static_cast<size_t>(n));
      break;
    case Storage::kBf16:
    case Storage::kBf16Stochastic:
      load_16bit(at<uint16_t>(stream, begin), /*is_bf16=*/true, n, to);
      break;
    case Storage::kF16:
      load_16bit(at<uint16_t>(stream, begin), /*is_bf16=*/false, n, to);
      break;
    case Storage::kBf16WithRest:
      load_split(stream, begin, n, to);
      break;
    case Storage::kF16WithCopy:
      load_copy(stream, begin, n, to);
      break;
    case Storage::kBlock8Signed:
    case Storage::kBlock8Unsigned:
      load_block8(stream, begin, n, to);
      break;
    case Storage::kF64:
    case Storage::kNone:
      return;
  }
  for (int i = n; i < round_up_16(n); ++i) to[i] = 0.0F;
}

void load(const Stream& stream, int64_t begin, int n, double* to) {
  memcpy(to, at<double>(stream, begin), sizeof(double) * static_cast<size_t>(n));
  for (int i = n; i < round_up_16(n); ++i) to[i] = 0.0;
}

void store(const float* from, const Stream& stream, int64_t begin, int n) {
  switch (stream.storage) {
    case Storage::kF32:
      memcpy(at<float>(stream, begin), from, sizeof(float) * static_cast<size_t>(n));
      break;
    case Storage::kBf16:
      store_16bit(from, /*is_bf16=*/true, n, at<uint16_t>(stream, begin));
      break;
    case Storage::kBf16Stochastic:
      store_bf16_by_chance(from, stream, begin, n);
      break;
    case Storage::kF16:
      store_16bit(from, /*is_bf16=*/false, n, at<uint16_t>(stream, begin));
      break;
    case Storage::kBf16WithRest:
      store_split(from, stream, begin, n);
      break;
    case Storage::kF16WithCopy:
      store_16bit(from, /*is_bf16=*/false, n, at<uint16_t>(stream, begin));
      memcpy(static_cast<float*>(stream.rest) + begin, from,
             sizeof(float) * static_cast<size_t>(n));
      break;
    case Storage::kBlock8Signed:
    case Storage::kBlock8Unsigned:
      store_block8(from, stream, begin, n);
      break;
    case Storage::kF64:
    case Storage::kNone:
      break;
  }
}

void store(const double* from, const Stream& stream, int64_t begin, int n) {
  memcpy(at<double>(stream, begin), from, sizeof(double) * static_cast<size_t>(n));
}

// One block of a stream as numbers of type T: the memory itself where it can be, else the buffer.
template <typename T>
class Block {
 public:
  Block(const Stream& stream, int64_t begin, int n) : stream_(stream), begin_(begin), n_(n) {
    if (stream.storage == direct_storage<T>() && n % 16 == 0) {
      x_ = at<T>(stream, begin);
    } else if (stream.storage != Storage::kNone) {
      load(stream, begin, n, buffer_);
    }
  }
  T* get() { return x_; }
  void write() {
    if (x_ == buffer_ && stream_.storage != Storage::kNone) store(buffer_, stream_, begin_, n_);
  }
  // What write() left of the numbers.
  void read_back() {
    if (stream_.storage != direct_storage<T>()) load(stream_, begin_, n_, buffer_);
  }

 private:
  const Stream& stream_;
  int64_t begin_;
  int n_;
  T* x_ = buffer_;
  alignas(64) T buffer_[kBlock];
};

// The same for a gradient: multiplied, and put back where that is asked for.
template <typename T>
class GradBlock {
 public:
  GradBlock(const GradStream& grad, int64_t begin, int n) {
    const Stream stream{grad.storage, grad.data};
    const bool has_factor = grad.factor != 1.0 || grad.second_factor != 1.0;
    if (stream.storage == direct_storage<T>() && n % 16 == 0) {
      const T* from = at<T>(stream, begin);
      if (!has_factor) {
        x_ = from;
        return;
      }
      multiply(grad, from, n);
    } else {
      load(stream, begin, n, buffer_);
      if (has_factor) multiply(grad, buffer_, n);
    }
    x_ = buffer_;
    if (grad.write_back && has_factor) store(buffer_, stream, begin, n);
  }
  const T* get() const { return x_; }

 private:
  void multiply(const GradStream& grad, const T* from, int n) {
    const auto factor = Lane<T>::all(grad.factor);
    const auto second = Lane<T>::all(grad.second_factor);
    for (int i = 0; i < round_up_16(n); i += Lane<T>::kWidth) {
      (Lane<T>::load(from + i) * factor * second).store(buffer_ + i);
    }
    for (int i = n; i < round_up_16(n); ++i) buffer_[i] = 0;  // an infinite factor made it NaN
  }

  const T* x_;
  alignas(64) T buffer_[kBlock];
};

// Asks for the next block while this one is computed; a block is more than the hardware looks
// ahead.
void prefetch_bytes(const void* data, int64_t begin, int64_t end) {
  const auto* from = static_cast<const char*>(data);
  for (int64_t i = begin; i < end; i += 64) __builtin_prefetch(from + i, 1);
}
void prefetch(const Stream& stream, int64_t begin, int64_t end) {
  if (stream.storage == Storage::kNone) return;
  const int64_t last = begin + kBlock < end ? begin + kBlock : end;
  const int64_t size = bytes_per_element(stream.storage);
  prefetch_bytes(stream.data, begin * size, last * size);
  if (stream.storage == Storage::kBf16WithRest) prefetch_bytes(stream.rest, 2 * begin, 2 * last);
  if (stream.storage == Storage::kF16WithCopy) prefetch_bytes(stream.rest, 4 * begin, 4 * last);
}

template <typename Visit>
void for_each_block(Range range, const Visit& visit) {
  for (int64_t i = range.begin; i < range.end; i += kBlock) {
    visit(i, static_cast<int>(range.end - i < kBlock ? range.end - i : kBlock));
  }
}

// ---- gradients ----

double tree_sum(double* sums) {
  for (int half = 8; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) sums[i] += sums[i + half];
  }
  return sums[0];
}

bool is_finite(double x) { return x - x == 0.0; }

template <typename T>
GradMeasure measure_as(const GradStream& grad, Range range) {
  SquareSums<T> squares;
  GradMeasure result;
  GradStream source = grad;
  source.write_back = false;
  // Multiplied in the loop, unless that would make the zeros behind the last number NaN.
  auto factor = static_cast<T>(source.factor), second = static_cast<T>(source.second_factor);
  if (is_finite(factor) && is_finite(second)) {
    source.factor = source.second_factor = 1.0;
  } else {
    factor = second = 1;
  }
  for_each_block(range, [&](int64_t begin, int n) {
    prefetch({source.storage, source.data}, begin + 2 * int64_t{kBlock}, range.end);
    const GradBlock<T> block(source, begin, n);
    const T* x = block.get();
    for (int i = 0; i < round_up_16(n); i += 16) squares.add16(x + i, factor, second);
    if constexpr (sizeof(T) == 8) {  // the square of a finite double may be inf
      for (int i = 0; i < n; ++i) {
        const T y = x[i] * factor * second;
        result.has_nonfinite |= !is_finite(y);
        result.has_nan |= y != y;
      }
    }
  });
  double sums[16];
  squares.get(sums);
  result.sum_of_squares = tree_sum(sums);
  if constexpr (sizeof(T) == 4) {
    result.has_nonfinite = !is_finite(result.sum_of_squares);
    result.has_nan = result.sum_of_squares != result.sum_of_squares;
  }
  return result;
}

GradMeasure measure(const GradStream& grad, Range range) {
  return grad.storage == Storage::kF64 ? measure_as<double>(grad, range)
                                       : measure_as<float>(grad, range);
}

template <typename T>
void multiply_as(const GradStream& grad, Range range) {
  GradStream target = grad;
  target.write_back = true;
  for_each_block(range, [&](int64_t begin, int n) { const GradBlock<T> block(target, begin, n); });
}

void multiply(const GradStream& grad, Range range) {
  grad.storage == Storage::kF64 ? multiply_as<double>(grad, range)
                                : multiply_as<float>(grad, range);
}

// ---- Adam ----

enum class RootWay : uint8_t { kIeee, kEstimated, kFunction };

template <typename T>
auto root_function(const RootFunctions& roots) {
  if constexpr (sizeof(T) == 8) {
    return roots.of_doubles;
  } else {
    return roots.of_floats;
  }
}

template <typename T>
RootWay root_way(const RootFunctions& roots) {
  if (sizeof(T) == 4 && roots.floats_are_estimated) return RootWay::kEstimated;
  return root_function<T>(roots) == nullptr ? RootWay::kIeee : RootWay::kFunction;
}

// One block; all pointers and constants are locals, so that no store makes the compiler read them
// again. With kFunction what is under the root goes to `roots`, and p is not yet updated.
template <Decay kDecay, bool kAmsgrad, RootWay kRoots, typename T>
void adam_lanes(const AdamLanes<Lane<T>> c, const Lane<T> factor, const Lane<T> second_factor,
                const T* g, T* p, T* m, T* v, T* v_max, T* roots, int count) {
  using L = Lane<T>;
  for (int i = 0; i < count; i += L::kWidth) {
    L p_i = L::load(p + i), m_i = L::load(m + i), v_i = L::load(v + i), v_max_i = v_i;
    if constexpr (kAmsgrad) v_max_i = L::load(v_max + i);
    const L g_i = L::load(g + i) * factor * second_factor;
    const L root = adam_moments<kDecay, kAmsgrad>(c, g_i, p_i, m_i, v_i, v_max_i);
    if constexpr (kRoots == RootWay::kIeee) p_i = adam_apply(c, p_i, m_i, sqrt(root));
    if constexpr (kRoots == RootWay::kEstimated) {
      if constexpr (sizeof(T) == 4) p_i = adam_apply(c, p_i, m_i, estimated_sqrt(root));
    }
    if constexpr (kRoots == RootWay::kFunction) root.store(roots + i);
    p_i.store(p + i);
    m_i.store(m + i);
    v_i.store(v + i);
    if constexpr (kAmsgrad) v_max_i.store(v_max + i);
  }
}

template <Decay kDecay, bool kAmsgrad, typename T>
void adam_range(const AdamRule& rule, const AdamArrays& arrays, Range range) {
  using L = Lane<T>;
  const AdamLanes<L> c(rule);
  const RootWay way = root_way<T>(arrays.roots);
  // Without a write back the factors are the loop's.
  GradStream source = arrays.grad;
  L factor = L::all(1.0), second_factor = factor;
  if (!source.write_back) {
    factor = L::all(source.factor);
    second_factor = L::all(source.second_factor);
    source.factor = source.second_factor = 1.0;
  }
  for_each_block(range, [&](int64_t begin, int n) {
    prefetch({source.storage, source.data}, begin + kBlock, range.end);
    prefetch(arrays.param, begin + kBlock, range.end);
    prefetch(arrays.exp_avg, begin + kBlock, range.end);
    prefetch(arrays.exp_avg_sq, begin + kBlock, range.end);
    const GradBlock<T> grad(source, begin, n);
    Block<T> param(arrays.param, begin, n);
    Block<T> exp_avg(arrays.exp_avg, begin, n);
    Block<T> exp_avg_sq(arrays.exp_avg_sq, begin, n);
    Block<T> max_exp_avg_sq(arrays.max_exp_avg_sq, begin, n);
    const int count = round_up_16(n);
    alignas(64) T roots[kBlock];
    const auto update = [&](auto* lanes) {
      lanes(c, factor, second_factor, grad.get(), param.get(), exp_avg.get(), exp_avg_sq.get(),
            max_exp_avg_sq.get(), roots, count);
    };
    switch (way) {
      case RootWay::kIeee:
        update(&adam_lanes<kDecay, kAmsgrad, RootWay::kIeee, T>);
        break;
      case RootWay::kEstimated:
        update(&adam_lanes<kDecay, kAmsgrad, RootWay::kEstimated, T>);
        break;
      case RootWay::kFunction:
        update(&adam_lanes<kDecay, kAmsgrad, RootWay::kFunction, T>);
        root_function<T>(arrays.roots)(count, roots);
        T* const p = param.get();
        const T* const m = exp_avg.get();
        for (int i = 0; i < count; i += L::kWidth) {
          adam_apply(c, L::load(p + i), L::load(m + i), L::load(roots + i)).store(p + i);
        }
        break;
    }
    param.write();
    exp_avg.write();
    exp_avg_sq.write();
    max_exp_avg_sq.write();
  });
}

template <Decay kDecay, typename T>
void adam_with(const AdamRule& rule, const AdamArrays& arrays, Range range) {
  rule.amsgrad ? adam_range<kDecay, true, T>(rule, arrays, range)
               : adam_range<kDecay, false, T>(rule, arrays, range);
}

template <typename T>
void adam_as(const AdamRule& rule, const AdamArrays& arrays, Range range) {
  if (!rule.has_decay) {
    adam_with<Decay::kNone, T>(rule, arrays, range);
  } else if (rule.decoupled) {
    adam_with<Decay::kDecoupled, T>(rule, arrays, range);
  } else {
    adam_with<Decay::kInGradient, T>(rule, arrays, range);
  }
}

void adam(const AdamRule& rule, const AdamArrays& arrays, Range range) {
  arrays.param.storage == Storage::kF64 ? adam_as<double>(rule, arrays, range)
                                        : adam_as<float>(rule, arrays, range);
}

// ---- SGD ----

template <bool kDecay, bool kMomentum, typename T>
void sgd_range(const SgdRule& rule, const SgdArrays& arrays, Range range) {
  using L = Lane<T>;
  const SgdLanes<L> c(rule);
  for_each_block(range, [&](int64_t begin, int n) {
    const GradBlock<T> grad(arrays.grad, begin, n);
    Block<T> param(arrays.param, begin, n);
    Block<T> momentum_buffer(arrays.momentum_buffer, begin, n);
    for (int i = 0; i < round_up_16(n); i += L::kWidth) {
      L p = L::load(param.get() + i), buffer = p;
      if constexpr (kMomentum) buffer = L::load(momentum_buffer.get() + i);
      sgd_apply<kDecay, kMomentum>(c, rule.is_first, rule.nesterov, L::load(grad.get() + i), p,
                                   buffer);
      p.store(param.get() + i);
      if constexpr (kMomentum) buffer.store(momentum_buffer.get() + i);
    }
    param.write();
    momentum_buffer.write();
  });
}

template <typename T>
void sgd_as(const SgdRule& rule, const SgdArrays& arrays, Range range) {
  const bool decays = rule.weight_decay != 0.0, has_momentum = rule.momentum != 0.0;
  if (decays) {
    has_momentum ? sgd_range<true, true, T>(rule, arrays, range)
                 : sgd_range<true, false, T>(rule, arrays, range);
  } else {
    has_momentum ? sgd_range<false, true, T>(rule, arrays, range)
                 : sgd_range<false, false, T>(rule, arrays, range);
  }
}

void sgd(const SgdRule& rule, const SgdArrays& arrays, Range range) {
  arrays.param.storage == Storage::kF64 ? sgd_as<double>(rule, arrays, range)
                                        : sgd_as<float>(rule, arrays, range);
}

// ---- LAMB ----

template <typename T>
LambNorms lamb_moments_as(const LambRule& rule, const LambArrays& arrays, Range range) {
  using L = Lane<T>;
  const LambLanes<L> c(rule);
  SquareSums<T> weights, directions;
  for_each_block(range, [&](int64_t begin, int n) {
    const GradBlock<T> grad(arrays.grad, begin, n);
    Block<T> param(arrays.param, begin, n);
    Block<T> exp_avg(arrays.exp_avg, begin, n);
    Block<T> exp_avg_sq(arrays.exp_avg_sq, begin, n);
    for (int i = 0; i < round_up_16(n); i += L::kWidth) {
      L m = L::load(exp_avg.get() + i), v = L::load(exp_avg_sq.get() + i);
      lamb_moments(c, L::load(grad.get() + i), m, v);
      m.store(exp_avg.get() + i);
      v.store(exp_avg_sq.get() + i);
    }
    exp_avg.write();
    exp_avg_sq.write();
    exp_avg.read_back();  // lamb_apply will see rounded moments
    exp_avg_sq.read_back();
    alignas(64) T directions_of_block[kBlock];
    for (int i = 0; i < round_up_16(n); i += L::kWidth) {
      lamb_direction(c, L::load(param.get() + i), L::load(exp_avg.get() + i),
                     L::load(exp_avg_sq.get() + i))
          .store(directions_of_block + i);
    }
    for (int i = n; i < round_up_16(n); ++i) directions_of_block[i] = 0;
    for (int i = 0; i < round_up_16(n); i += 16) {
      weights.add16(param.get() + i);
      directions.add16(directions_of_block + i);
    }
  });
  double sums[16];
  LambNorms norms;
  weights.get(sums);
  norms.weight = tree_sum(sums);
  directions.get(sums);
  norms.direction = tree_sum(sums);
  return norms;
}

template <typename T>
void lamb_apply_as(const LambRule& rule, const LambArrays& arrays, double step, Range range) {
  using L = Lane<T>;
  const LambLanes<L> c(rule);
  const L minus_step = L::all(-step);
  for_each_block(range, [&](int64_t begin, int n) {
    Block<T> param(arrays.param, begin, n);
    Block<T> exp_avg(arrays.exp_avg, begin, n);
    Block<T> exp_avg_sq(arrays.exp_avg_sq, begin, n);
    for (int i = 0; i < round_up_16(n); i += L::kWidth) {
      const L p = L::load(param.get() + i);
      const L direction =
          lamb_direction(c, p, L::load(exp_avg.get() + i), L::load(exp_avg_sq.get() + i));
      fma(minus_step, direction, p).store(param.get() + i);
    }
    param.write();
  });
}

LambNorms lamb_moments_any(const LambRule& rule, const LambArrays& arrays, Range range) {
  return arrays.param.storage == Storage::kF64 ? lamb_moments_as<double>(rule, arrays, range)
                                               : lamb_moments_as<float>(rule, arrays, range);
}

void lamb_apply_any(const LambRule& rule, const LambArrays& arrays, double step, Range range) {
  arrays.param.storage == Storage::kF64 ? lamb_apply_as<double>(rule, arrays, step, range)
                                        : lamb_apply_as<float>(rule, arrays, step, range);
}

// ---- plain conversion ----

void read(const Stream& from, Range range, float* to) {
  for_each_block(range, [&](int64_t begin, int n) {
    alignas(64) float buffer[kBlock];
    load(from, begin, n, buffer);
    memcpy(to + (begin - range.begin), buffer, sizeof(float) * static_cast<size_t>(n));
  });
}

void write(const Stream& to, Range range, const float* from) {
  for_each_block(range, [&](int64_t begin, int n) {
    alignas(64) float buffer[kBlock];
    memcpy(buffer, from + (begin - range.begin), sizeof(float) * static_cast<size_t>(n));
    store(buffer, to, begin, n);
  });
}

void estimated_roots(int64_t count, float* x) {
  for (int64_t i = 0; i < count; i += Lane<float>::kWidth) {
    if (i + Lane<float>::kWidth <= count) {
      estimated_sqrt(Lane<float>::load(x + i)).store(x + i);
      continue;
    }
    float rest[Lane<float>::kWidth] = {};
    memcpy(rest, x + i, sizeof(float) * static_cast<size_t>(count - i));
    estimated_sqrt(Lane<float>::load(rest)).store(rest);
    memcpy(x + i, rest, sizeof(float) * static_cast<size_t>(count - i));
  }
}

constexpr KernelTable make_table(const char* name, bool (*runs_here)()) {
  return {name,
          runs_here,
          measure,
          multiply,
          adam,
          sgd,
          lamb_moments_any,
          lamb_apply_any,
          read,
          write,
          estimated_roots,
          image_kernels,
          row_kernels(),
          product_kernels()};
}

}  // namespace
}  // namespace torchamp::kernels
