#pragma once
// Sums, and sums of squared distances from the mean: how those of two parts become one's.

#include <cstdint>

namespace torchamp::kernels {

/// Joins the sums of `count` numbers with those of `other_count`, for each of n columns.
/// Source: Chan, Golub and LeVeque 1979, "Updating formulae and a pairwise algorithm for computing
/// sample variances".
static inline void join_moments(int64_t n, double count, double* sum, double* spread,
                                double other_count, const double* other_sum,
                                const double* other_spread) {
  const double inverse = 1 / count, other_inverse = 1 / other_count;
  const double share = count * other_count / (count + other_count);
  for (int64_t i = 0; i < n; ++i) {
    const double between = other_sum[i] * other_inverse - sum[i] * inverse;
    spread[i] += other_spread[i] + between * between * share;
    sum[i] += other_sum[i];
  }
}

}  // namespace torchamp::kernels
