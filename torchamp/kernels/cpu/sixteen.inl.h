// Sixteen numbers of a row, in as many lanes as that takes: sums over a row are sixteen partial
// sums whatever the lane, so all tables give the same bits. Include after a lane_*.h.

#include <cstring>

#include "torchamp/kernels/convert.h"
#include "torchamp/kernels/cpu/row_ops.h"

namespace torchamp::kernels {
namespace {

struct Bf16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};

Lane<float> load_lane(const float* from) { return Lane<float>::load(from); }
Lane<float> load_lane(const Bf16* from) { return Lane<float>::from_bf16(&from->bits); }
Lane<float> load_lane(const F16* from) { return Lane<float>::from_f16(&from->bits); }
void store_lane(Lane<float> x, float* to) { x.store(to); }
void store_lane(Lane<float> x, Bf16* to) { x.to_bf16(&to->bits); }
void store_lane(Lane<float> x, F16* to) { x.to_f16(&to->bits); }
void put(float x, float* to) { *to = x; }
void put(float x, Bf16* to) { to->bits = to_bf16(x); }
void put(float x, F16* to) { to->bits = to_f16(x); }

struct Sixteen {
  static constexpr int kParts = 16 / Lane<float>::kWidth;
  Lane<float> part[kParts];

  static Sixteen all(float x) {
    Sixteen result;
    for (Lane<float>& part : result.part) part = Lane<float>::all(x);
    return result;
  }
  template <typename E>
  static Sixteen load(const E* from) {
    Sixteen result;
    for (int i = 0; i < kParts; ++i) result.part[i] = load_lane(from + i * Lane<float>::kWidth);
    return result;
  }
  // `count` numbers, then `pad`.
  template <typename E>
  static Sixteen load(const E* from, int64_t count, float pad) {
    E all[16];
    for (E& each : all) put(pad, &each);
    memcpy(all, from, sizeof(E) * static_cast<size_t>(count));
    return load(all);
  }
  template <typename E>
  void store(E* to) const {
    for (int i = 0; i < kParts; ++i) store_lane(part[i], to + i * Lane<float>::kWidth);
  }
  template <typename E>
  void store(E* to, int64_t count) const {
    if (count == 16) return store(to);
    E all[16];
    store(all);
    memcpy(to, all, sizeof(E) * static_cast<size_t>(count));
  }
};

// f of each lane of the arguments.
template <typename F, typename... More>
Sixteen map(F f, const Sixteen& a, const More&... more) {
  Sixteen result;
  for (int i = 0; i < Sixteen::kParts; ++i) result.part[i] = f(a.part[i], more.part[i]...);
  return result;
}

Sixteen operator+(const Sixteen& a, const Sixteen& b) {
  return map([](Lane<float> x, Lane<float> y) { return x + y; }, a, b);
}
Sixteen operator-(const Sixteen& a, const Sixteen& b) {
  return map([](Lane<float> x, Lane<float> y) { return x - y; }, a, b);
}
Sixteen operator*(const Sixteen& a, const Sixteen& b) {
  return map([](Lane<float> x, Lane<float> y) { return x * y; }, a, b);
}
Sixteen fma(const Sixteen& a, const Sixteen& b, const Sixteen& c) {
  return map([](Lane<float> x, Lane<float> y, Lane<float> z) { return fma(x, y, z); }, a, b, c);
}

// By a tree.
float sum_of(const Sixteen& x) {
  float all[16];
  x.store(all);
  for (int half = 8; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) all[i] += all[i + half];
  }
  return all[0];
}

// Calls f(index, count) for each sixteen numbers of a row, and for what remains; the count is a
// constant in the loop, so loads and stores of whole lanes are what is left of it.
template <typename F>
void for_each_16(int64_t n, F&& f) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) f(i, int64_t{16});
  if (i < n) f(i, n - i);
}

template <typename E>
Sixteen load_16(const E* from, int64_t count, float pad) {
  return count == 16 ? Sixteen::load(from) : Sixteen::load(from, count, pad);
}

// The first `count` numbers, then zeros.
Sixteen cut(const Sixteen& x, int64_t count) {
  float all[16] = {};
  x.store(all, count);
  return Sixteen::load(all);
}

// Numbers of a row that are summed in float32.
constexpr int64_t kBlockOfRow = 4096;

// The sum over a row of f(index, count): in float32 for a block, of blocks in double.
template <typename F>
double sum_over_row(int64_t n, F&& f) {
  double total = 0.0;
  for (int64_t begin = 0; begin < n; begin += kBlockOfRow) {
    const int64_t length = n - begin < kBlockOfRow ? n - begin : kBlockOfRow;
    Sixteen sums = Sixteen::all(0.0F);
    for_each_16(length, [&](int64_t i, int64_t count) { sums = sums + f(begin + i, count); });
    total += sum_of(sums);
  }
  return total;
}

template <typename E>
E* row_of(const Rows& rows, int64_t row) {
  return static_cast<E*>(rows.data) + row * rows.stride;
}

// f of a null pointer of the type of the elements.
template <typename F>
void with_elements(Storage storage, F&& f) {
  switch (storage) {
    case Storage::kF32:
      return f(static_cast<float*>(nullptr));
    case Storage::kBf16:
      return f(static_cast<Bf16*>(nullptr));
    case Storage::kF16:
      return f(static_cast<F16*>(nullptr));
    default:
      return;
  }
}

}  // namespace
}  // namespace torchamp::kernels
