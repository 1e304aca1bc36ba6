// Layer norm of a RowKernels. Include after sixteen.inl.h.

#include <math.h>

namespace torchamp::kernels {
namespace {

void layer_norm(const LayerNorm& norm, int64_t columns, RowRange rows) {
  with_elements(norm.x.storage, [&]<typename E>(E*) {
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      const E* x = row_of<E>(norm.x, row);
      E* to = row_of<E>(norm.out, row);
      const auto count_of_row = static_cast<double>(columns);
      const auto mean = static_cast<float>(
          sum_over_row(columns,
                       [&](int64_t i, int64_t count) { return load_16(x + i, count, 0.0F); }) /
          count_of_row);
      const Sixteen means = Sixteen::all(mean);
      const double squares = sum_over_row(columns, [&](int64_t i, int64_t count) {
        Sixteen distance = load_16(x + i, count, 0.0F) - means;
        if (count < 16) distance = cut(distance, count);
        return distance * distance;
      });
      const auto rstd = static_cast<float>(1.0 / ::sqrt(squares / count_of_row + norm.eps));
      norm.mean[row] = mean;
      norm.rstd[row] = rstd;
      const Sixteen scale = Sixteen::all(rstd);
      for_each_16(columns, [&](int64_t i, int64_t count) {
        Sixteen y = (load_16(x + i, count, 0.0F) - means) * scale;
        if (norm.weight != nullptr) y = y * load_16(norm.weight + i, count, 0.0F);
        if (norm.bias != nullptr) y = y + load_16(norm.bias + i, count, 0.0F);
        y.store(to + i, count);
      });
    }
  });
}

// With h = (x - mean) rstd and g = grad weight:
//   grad of x <- rstd (g - mean(g) - h mean(g h));  of weight <- sum(grad h);  of bias <- sum(grad)
void layer_norm_backward(const LayerNormGrad& norm, int64_t columns, RowRange rows) {
  with_elements(norm.x.storage, [&]<typename E>(E*) {
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      const E* x = row_of<E>(norm.x, row);
      const E* grad = row_of<E>(norm.grad, row);
      const Sixteen mean = Sixteen::all(norm.mean[row]), rstd = Sixteen::all(norm.rstd[row]);
      const auto normalized = [&](int64_t i, int64_t count) {
        return (load_16(x + i, count, 0.0F) - mean) * rstd;
      };
      const auto weighted = [&](int64_t i, int64_t count) {
        const Sixteen g = load_16(grad + i, count, 0.0F);
        return norm.weight == nullptr ? g : g * load_16(norm.weight + i, count, 0.0F);
      };
      // Both sums of the row, as sum_over_row() has them, and those of its columns in one go.
      double sum = 0.0, dot = 0.0;
      for (int64_t begin = 0; begin < columns; begin += kBlockOfRow) {
        const int64_t length = columns - begin < kBlockOfRow ? columns - begin : kBlockOfRow;
        Sixteen sums = Sixteen::all(0.0F), dots = Sixteen::all(0.0F);
        for_each_16(length, [&](int64_t k, int64_t count) {
          const int64_t i = begin + k;
          const Sixteen h = normalized(i, count);
          const Sixteen g = weighted(i, count);
          sums = sums + g;
          dots = fma(g, h, dots);
          if (norm.sum_of_weight == nullptr) return;
          float* of_weight = norm.sum_of_weight + i;
          float* of_bias = norm.sum_of_bias + i;
          const Sixteen unweighted = load_16(grad + i, count, 0.0F);
          fma(unweighted, h, load_16(of_weight, count, 0.0F)).store(of_weight, count);
          (load_16(of_bias, count, 0.0F) + unweighted).store(of_bias, count);
        });
        sum += sum_of(sums);
        dot += sum_of(dots);
      }
      if (norm.out.data == nullptr) continue;
      const auto count_of_row = static_cast<double>(columns);
      const Sixteen mean_of_g = Sixteen::all(static_cast<float>(sum / count_of_row));
      const Sixteen minus_mean_of_gh = Sixteen::all(-static_cast<float>(dot / count_of_row));
      E* to = row_of<E>(norm.out, row);
      for_each_16(columns, [&](int64_t i, int64_t count) {
        (fma(normalized(i, count), minus_mean_of_gh, weighted(i, count) - mean_of_g) * rstd)
            .store(to + i, count);
      });
    }
  });
}

}  // namespace
}  // namespace torchamp::kernels
