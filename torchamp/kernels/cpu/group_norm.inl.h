// Group norm of a RowKernels: a layer norm whose weight and bias are one number a channel. Include
// after sixteen.inl.h.

#include <math.h>

namespace torchamp::kernels {
namespace {

template <typename E>
Sixteen distances(const E* x, Sixteen mean, int64_t i, int64_t count) {
  const Sixteen distance = load_16(x + i, count, 0.0F) - mean;
  return count < 16 ? cut(distance, count) : distance;
}

void group_norm(const GroupNorm& norm, RowRange groups) {
  with_elements(norm.storage, [&]<typename E>(E*) {
    const int64_t size = norm.channels * norm.pixels;
    for (int64_t group = groups.begin; group < groups.end; ++group) {
      const E* x = static_cast<const E*>(norm.x) + group * size;
      E* to = static_cast<E*>(norm.out) + group * size;
      const auto count_of_group = static_cast<double>(size);
      const auto mean = static_cast<float>(
          sum_over_row(size,
                       [&](int64_t i, int64_t count) { return load_16(x + i, count, 0.0F); }) /
          count_of_group);
      const Sixteen means = Sixteen::all(mean);
      const double squares = sum_over_row(size, [&](int64_t i, int64_t count) {
        const Sixteen distance = distances(x, means, i, count);
        return distance * distance;
      });
      const auto rstd = static_cast<float>(1.0 / ::sqrt(squares / count_of_group + norm.eps));
      norm.mean[group] = mean;
      norm.rstd[group] = rstd;
      const int64_t first_channel = group % norm.groups * norm.channels;
      for (int64_t c = 0; c < norm.channels; ++c) {
        const float weight = norm.weight == nullptr ? 1.0F : norm.weight[first_channel + c];
        const float shift = norm.bias == nullptr ? 0.0F : norm.bias[first_channel + c];
        const Sixteen scale = Sixteen::all(rstd * weight), bias = Sixteen::all(shift);
        for_each_16(norm.pixels, [&](int64_t k, int64_t count) {
          const int64_t i = c * norm.pixels + k;
          fma(load_16(x + i, count, 0.0F) - means, scale, bias).store(to + i, count);
        });
      }
    }
  });
}

// With h = (x - mean) rstd and g = grad weight:
//   grad of x <- rstd (g - mean(g) - h mean(g h));  a channel's sums: of grad, of grad h
void group_norm_backward(const GroupNormGrad& norm, RowRange groups) {
  with_elements(norm.storage, [&]<typename E>(E*) {
    const int64_t size = norm.channels * norm.pixels;
    for (int64_t group = groups.begin; group < groups.end; ++group) {
      const E* x = static_cast<const E*>(norm.x) + group * size;
      const E* grad = static_cast<const E*>(norm.grad) + group * size;
      const Sixteen mean = Sixteen::all(norm.mean[group]);
      const float rstd = norm.rstd[group];
      const float* weight =
          norm.weight == nullptr ? nullptr : norm.weight + group % norm.groups * norm.channels;
      double sum = 0.0, dot = 0.0;  // of g, of g h
      for (int64_t c = 0; c < norm.channels; ++c) {
        const E* x_of_channel = x + c * norm.pixels;
        const E* grad_of_channel = grad + c * norm.pixels;
        const double sum_of_channel = sum_over_row(norm.pixels, [&](int64_t i, int64_t count) {
          return load_16(grad_of_channel + i, count, 0.0F);
        });
        const double dot_of_channel =
            sum_over_row(norm.pixels,
                         [&](int64_t i, int64_t count) {
                           return load_16(grad_of_channel + i, count, 0.0F) *
                                  distances(x_of_channel, mean, i, count);
                         }) *
            rstd;
        norm.sum[group * norm.channels + c] = sum_of_channel;
        norm.dot[group * norm.channels + c] = dot_of_channel;
        const double factor = weight == nullptr ? 1.0 : weight[c];
        sum += factor * sum_of_channel;
        dot += factor * dot_of_channel;
      }
      if (norm.out == nullptr) continue;
      const auto count_of_group = static_cast<double>(size);
      // grad of x = grad a + (x - mean) b + shift
      const Sixteen b = Sixteen::all(static_cast<float>(-rstd * rstd * (dot / count_of_group)));
      const Sixteen shift = Sixteen::all(static_cast<float>(-rstd * (sum / count_of_group)));
      E* to = static_cast<E*>(norm.out) + group * size;
      for (int64_t c = 0; c < norm.channels; ++c) {
        const Sixteen a = Sixteen::all(weight == nullptr ? rstd : rstd * weight[c]);
        for_each_16(norm.pixels, [&](int64_t k, int64_t count) {
          const int64_t i = c * norm.pixels + k;
          fma(load_16(grad + i, count, 0.0F), a, fma(load_16(x + i, count, 0.0F) - mean, b, shift))
              .store(to + i, count);
        });
      }
    }
  });
}

}  // namespace
}  // namespace torchamp::kernels
