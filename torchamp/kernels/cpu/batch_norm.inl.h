// Batch norm over rows of channels. Include once in a file, after image_lane.inl.h.
//
// A block of kRowsOfBlock rows is worked through in columns of up to four lanes, whose sums and
// constants stay in registers. Nothing is added across lanes, so every table computes the same
// bits.

#include "torchamp/kernels/cpu/image_lane.inl.h"

namespace torchamp::kernels {
namespace {
namespace image {

template <typename Visit>
void for_each_rows(Range rows, const Visit& visit) {
  for (int64_t begin = rows.begin; begin < rows.end; begin += kRowsOfBlock) {
    visit(begin, begin + kRowsOfBlock < rows.end ? begin + kRowsOfBlock : rows.end);
  }
}

// ---- sums of x ----

// Of x - around, and of its square, over a block; around is 0 where `around` is null.
template <Storage kStorage, int kLanes>
void block_sums(const void* x, int64_t channels, int64_t begin, int64_t end, int64_t c,
                const float* around, float* sum, float* squares) {
  L a[kLanes], s[kLanes], q[kLanes];
  for (int i = 0; i < kLanes; ++i) {
    a[i] = around == nullptr ? L::all(0) : L::load(around + i * kWidth);
    s[i] = q[i] = L::all(0);
  }
  for (int64_t row = begin; row < end; ++row) {
    for (int i = 0; i < kLanes; ++i) {
      const L d = load<kStorage>(x, row * channels + c + i * kWidth) - a[i];
      s[i] = s[i] + d;
      q[i] = fma(d, d, q[i]);
    }
  }
  for (int i = 0; i < kLanes; ++i) {
    s[i].store(sum + i * kWidth);
    q[i].store(squares + i * kWidth);
  }
}

// The mean of a block, as far as float32 has it; 0 where it is not finite.
void take_around(int64_t count, const double* sums, double per_row, float* around) {
  for (int64_t i = 0; i < count; ++i) {
    const auto mean = static_cast<float>(sums[i] * per_row);
    around[i] = mean - mean == 0.0F ? mean : 0.0F;
  }
}

template <Storage kStorage, int kLanes>
void moments_of_group(const void* x, int64_t channels, Range rows, int64_t c, double* sum,
                      double* spread) {
  constexpr int64_t kCount = kLanes * kWidth;
  float around[kCount], s[kCount], q[kCount];
  double of_block[kCount];
  for (int64_t i = 0; i < kCount; ++i) sum[c + i] = spread[c + i] = 0;
  for_each_rows(rows, [&](int64_t begin, int64_t end) {
    const auto num_rows = static_cast<double>(end - begin);
    const auto before = static_cast<double>(begin - rows.begin);
    if (begin == rows.begin) {  // a few rows tell about where the numbers lie
      const int64_t some = begin + 8 < end ? begin + 8 : end;
      block_sums<kStorage, kLanes>(x, channels, begin, some, c, nullptr, s, q);
      for (int64_t i = 0; i < kCount; ++i) of_block[i] = s[i];
      take_around(kCount, of_block, 1 / static_cast<double>(some - begin), around);
    }
    block_sums<kStorage, kLanes>(x, channels, begin, end, c, around, s, q);
    // Chan, Golub and LeVeque 1979: two parts' sums of squared distances, and their means'.
    const double share = before == 0 ? 0 : before * num_rows / (before + num_rows);
    const double per_row = 1 / num_rows, per_row_before = before == 0 ? 0 : 1 / before;
    for (int64_t i = 0; i < kCount; ++i) {
      const double d = s[i];
      of_block[i] = d + num_rows * static_cast<double>(around[i]);
      const double between = of_block[i] * per_row - sum[c + i] * per_row_before;
      spread[c + i] += (q[i] - d * d * per_row) + between * between * share;
      sum[c + i] += of_block[i];
    }
    take_around(kCount, of_block, per_row, around);
  });
}

void moments(Storage storage, int64_t channels, const void* x, Range rows, double* sum,
             double* spread) {
  with_storage(storage, [&]<Storage kStorage>() {
    for_each_group(channels, [&]<int kLanes>(int64_t c) {
      moments_of_group<kStorage, kLanes>(x, channels, rows, c, sum, spread);
    });
  });
}

// ---- forward ----

// Row by row, with the constants from the first-level cache: one stream to memory and one from it.
template <Storage kStorage, bool kRelu, bool kResidual>
void normalize_rows(const NormForward norm, Range rows) {
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    const int64_t begin = row * norm.channels;
    for (int64_t c = 0; c < norm.channels; c += kWidth) {
      L y = fma(load<kStorage>(norm.x, begin + c) - L::load(norm.mean + c), L::load(norm.scale + c),
                L::load(norm.bias + c));
      if constexpr (kResidual) y = y + load<kStorage>(norm.residual, begin + c);
      if constexpr (kRelu) y = zero_if_below(y);
      store<kStorage>(y, norm.y, begin + c);
    }
  }
}

void normalize(const NormForward& norm, Range rows) {
  with_storage(norm.storage, [&]<Storage kStorage>() {
    if (norm.residual != nullptr) {
      norm.relu ? normalize_rows<kStorage, true, true>(norm, rows)
                : normalize_rows<kStorage, false, true>(norm, rows);
    } else {
      norm.relu ? normalize_rows<kStorage, true, false>(norm, rows)
                : normalize_rows<kStorage, false, false>(norm, rows);
    }
  });
}

// ---- backward ----

// The gradient behind the relu, if there is one.
template <Storage kStorage, bool kRelu>
L gradient(const NormBackward& norm, int64_t at) {
  const L g = load<kStorage>(norm.grad, at);
  if constexpr (kRelu) return zero_unless_above(load<kStorage>(norm.output, at), g);
  return g;
}

template <Storage kStorage, bool kRelu, int kLanes>
void grad_sums_of_group(const NormBackward& norm, Range rows, int64_t c, double* sum, double* dot) {
  constexpr int64_t kCount = kLanes * kWidth;
  const int64_t channels = norm.channels;
  L mean[kLanes];
  for (int i = 0; i < kLanes; ++i) mean[i] = L::load(norm.mean + c + i * kWidth);
  for (int64_t i = 0; i < kCount; ++i) sum[c + i] = dot[c + i] = 0;
  for_each_rows(rows, [&](int64_t begin, int64_t end) {
    L s[kLanes], d[kLanes];
    for (int i = 0; i < kLanes; ++i) s[i] = d[i] = L::all(0);
    for (int64_t row = begin; row < end; ++row) {
      for (int i = 0; i < kLanes; ++i) {
        const int64_t at = row * channels + c + i * kWidth;
        const L g = gradient<kStorage, kRelu>(norm, at);
        s[i] = s[i] + g;
        d[i] = fma(g, load<kStorage>(norm.x, at) - mean[i], d[i]);
      }
    }
    float of_block[2][kCount];
    for (int i = 0; i < kLanes; ++i) {
      s[i].store(of_block[0] + i * kWidth);
      d[i].store(of_block[1] + i * kWidth);
    }
    for (int64_t i = 0; i < kCount; ++i) {
      sum[c + i] += of_block[0][i];
      dot[c + i] += of_block[1][i];
    }
  });
}

void grad_sums(const NormBackward& norm, Range rows, double* sum, double* dot) {
  with_storage(norm.storage, [&]<Storage kStorage>() {
    for_each_group(norm.channels, [&]<int kLanes>(int64_t c) {
      norm.output != nullptr ? grad_sums_of_group<kStorage, true, kLanes>(norm, rows, c, sum, dot)
                             : grad_sums_of_group<kStorage, false, kLanes>(norm, rows, c, sum, dot);
    });
  });
}

template <Storage kStorage, bool kRelu, bool kHasX, int kLanes>
void grad_input_of_group(const NormBackward& norm, int64_t begin, int64_t end, int64_t c) {
  const int64_t channels = norm.channels;
  L mean[kLanes], grad_mean[kLanes], slope[kLanes], scale[kLanes];
  for (int i = 0; i < kLanes; ++i) {
    if constexpr (kHasX) {
      mean[i] = L::load(norm.mean + c + i * kWidth);
      grad_mean[i] = L::load(norm.grad_mean + c + i * kWidth);
      slope[i] = L::all(0) - L::load(norm.slope + c + i * kWidth);
    }
    scale[i] = L::load(norm.scale + c + i * kWidth);
  }
  for (int64_t row = begin; row < end; ++row) {
    for (int i = 0; i < kLanes; ++i) {
      const int64_t at = row * channels + c + i * kWidth;
      L g = gradient<kStorage, kRelu>(norm, at);
      if constexpr (kRelu) {
        if (norm.grad_residual != nullptr) store<kStorage>(g, norm.grad_residual, at);
      }
      if constexpr (kHasX) {
        g = fma(load<kStorage>(norm.x, at) - mean[i], slope[i], g - grad_mean[i]);
      }
      store<kStorage>(g * scale[i], norm.grad_input, at);
    }
  }
}

template <Storage kStorage, bool kRelu, bool kHasX>
void grad_input_of_rows(const NormBackward& norm, Range rows) {
  for_each_rows(rows, [&](int64_t begin, int64_t end) {
    for_each_group(norm.channels, [&]<int kLanes>(int64_t c) {
      grad_input_of_group<kStorage, kRelu, kHasX, kLanes>(norm, begin, end, c);
    });
  });
}

void grad_input(const NormBackward& norm, Range rows) {
  with_storage(norm.storage, [&]<Storage kStorage>() {
    if (norm.x != nullptr) {
      norm.output != nullptr ? grad_input_of_rows<kStorage, true, true>(norm, rows)
                             : grad_input_of_rows<kStorage, false, true>(norm, rows);
    } else {
      norm.output != nullptr ? grad_input_of_rows<kStorage, true, false>(norm, rows)
                             : grad_input_of_rows<kStorage, false, false>(norm, rows);
    }
  });
}

}  // namespace image
}  // namespace
}  // namespace torchamp::kernels
