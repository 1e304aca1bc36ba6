// Log-softmax and cross entropy of a RowKernels. Include after sixteen.inl.h.

#include <math.h>

#include "torchamp/kernels/formula/exponential.h"

namespace torchamp::kernels {
namespace {

constexpr float kMinusInf = -__builtin_inff();

template <typename E>
float largest_of(const E* x, int64_t n) {
  // Four at once: a maximum waits for the one before it, and their order does not matter.
  Sixteen largest[4];
  for (Sixteen& each : largest) each = Sixteen::all(kMinusInf);
  const auto take = [](const Sixteen& a, const Sixteen& b) {
    return map([](Lane<float> p, Lane<float> q) { return larger(p, q); }, a, b);
  };
  int64_t i = 0;
  for (; i + 64 <= n; i += 64) {
    for (int64_t k = 0; k < 4; ++k) largest[k] = take(Sixteen::load(x + i + 16 * k), largest[k]);
  }
  for (; i < n; i += 16) {
    largest[0] = take(load_16(x + i, n - i < 16 ? n - i : 16, kMinusInf), largest[0]);
  }
  float all[16];
  take(take(largest[0], largest[1]), take(largest[2], largest[3])).store(all);
  float result = kMinusInf;
  for (const float each : all) result = each > result ? each : result;
  return result;
}

Sixteen exponentials(const Sixteen& x) {
  return map([](Lane<float> lane) { return exponential(lane); }, x);
}

template <typename E>
LogSum log_sum_of(const E* x, int64_t n) {
  const float largest = largest_of(x, n);
  const Sixteen shift = Sixteen::all(largest);
  const double sum = sum_over_row(n, [&](int64_t i, int64_t count) {
    return exponentials(load_16(x + i, count, kMinusInf) - shift);
  });
  return {largest, static_cast<float>(::log(sum))};
}

void log_sums(const Rows& x, int64_t columns, RowRange rows, LogSum* sums) {
  with_elements(x.storage, [&]<typename E>(E*) {
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      sums[row] = log_sum_of(row_of<E>(x, row), columns);
    }
  });
}

void weighted_sums(const Rows& x, const float* weight, int64_t columns, RowRange rows,
                   double* sums) {
  with_elements(x.storage, [&]<typename E>(E*) {
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      const E* from = row_of<E>(x, row);
      sums[row] = sum_over_row(columns, [&](int64_t i, int64_t count) {
        const Sixteen numbers = load_16(from + i, count, 0.0F);
        return weight == nullptr ? numbers : numbers * load_16(weight + i, count, 0.0F);
      });
    }
  });
}

void log_softmax(const Rows& x, const Rows& out, int64_t columns, RowRange rows) {
  with_elements(x.storage, [&]<typename E>(E*) {
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      const E* from = row_of<E>(x, row);
      E* to = row_of<E>(out, row);
      const LogSum sum = log_sum_of(from, columns);
      const Sixteen largest = Sixteen::all(sum.largest), log_of_sum = Sixteen::all(sum.log_of_sum);
      for_each_16(columns, [&](int64_t i, int64_t count) {
        (load_16(from + i, count, 0.0F) - largest - log_of_sum).store(to + i, count);
      });
    }
  });
}

void log_softmax_backward(const Rows& grad, const Rows& y, const Rows& out, int64_t columns,
                          RowRange rows) {
  with_elements(y.storage, [&]<typename E>(E*) {
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      const E* from = row_of<E>(grad, row);
      const E* result = row_of<E>(y, row);
      E* to = row_of<E>(out, row);
      const double sum = sum_over_row(
          columns, [&](int64_t i, int64_t count) { return load_16(from + i, count, 0.0F); });
      const Sixteen minus_sum = Sixteen::all(-static_cast<float>(sum));
      for_each_16(columns, [&](int64_t i, int64_t count) {
        fma(exponentials(load_16(result + i, count, 0.0F)), minus_sum,
            load_16(from + i, count, 0.0F))
            .store(to + i, count);
      });
    }
  });
}

template <typename E>
void cross_entropy_backward_of_row(const E* x, LogSum sum, const CrossEntropyGrad& grad,
                                   const float* weight, E* to, int64_t n) {
  const Sixteen largest = Sixteen::all(sum.largest), log_of_sum = Sixteen::all(sum.log_of_sum);
  const Sixteen of_softmax = Sixteen::all(grad.of_softmax);
  const Sixteen minus_of_weights = Sixteen::all(-grad.of_weights);
  const bool has_weights = grad.of_weights != 0.0F;
  const auto at = [&](int64_t i, int64_t count) {
    const Sixteen shifted = load_16(x + i, count, 0.0F) - largest - log_of_sum;
    const Sixteen result = exponentials(shifted) * of_softmax;
    if (!has_weights) return result;
    if (weight == nullptr) return result + minus_of_weights;
    return fma(load_16(weight + i, count, 0.0F), minus_of_weights, result);
  };
  for_each_16(n, [&](int64_t i, int64_t count) { at(i, count).store(to + i, count); });
  // The target's sixteen once more: the sum is rounded once.
  const int64_t first = grad.target / 16 * 16;
  float all[16];
  at(first, n - first < 16 ? n - first : 16).store(all);
  put(all[grad.target - first] - grad.at_target, to + grad.target);
}

void cross_entropy_backward(const Rows& x, const LogSum* sums, const CrossEntropyGrad* grads,
                            const float* weight, const Rows& out, int64_t columns, RowRange rows) {
  with_elements(x.storage, [&]<typename E>(E*) {
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      const LogSum sum = sums[row];
      const CrossEntropyGrad& grad = grads[row];
      E* to = row_of<E>(out, row);
      // A row without loss is 0, unless a NaN comes through.
      const bool is_zero = grad.of_softmax == 0.0F && grad.of_weights == 0.0F &&
                           grad.at_target == 0.0F && sum.largest - sum.largest == 0.0F &&
                           sum.log_of_sum - sum.log_of_sum == 0.0F;
      if (is_zero) {
        memset(to, 0, sizeof(E) * static_cast<size_t>(columns));
      } else {
        cross_entropy_backward_of_row(row_of<E>(x, row), sum, grad, weight, to, columns);
      }
    }
  });
}

}  // namespace
}  // namespace torchamp::kernels
