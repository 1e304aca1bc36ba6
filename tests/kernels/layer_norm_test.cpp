// Layer norm of rows, in every table: against loops in double, and the same bits as the scalar
// table.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/arrays.h"

namespace torchamp::kernels {
namespace {

constexpr int64_t kNumRows = 4;
constexpr double kEps = 1e-5;

double half_unit(double x, Storage storage) {
  const int mantissa = storage == Storage::kF32 ? 23 : storage == Storage::kBf16 ? 7 : 10;
  const int lowest = storage == Storage::kF16 ? -14 : -126;
  return std::ldexp(0.5, std::max(x == 0 ? lowest : std::ilogb(x), lowest) - mantissa);
}

struct Exact {
  std::vector<double> y, grad_x, grad_weight, grad_bias;
};

Exact exact_norm(const std::vector<double>& x, const std::vector<double>& grad,
                 const std::vector<float>& weight, const std::vector<float>& bias) {
  const size_t columns = weight.size();
  Exact exact{std::vector<double>(x.size()), std::vector<double>(x.size()),
              std::vector<double>(columns), std::vector<double>(columns)};
  for (size_t row = 0; row < x.size() / columns; ++row) {
    double mean = 0, variance = 0, sum = 0, dot = 0;
    const size_t first = row * columns;
    const auto count = static_cast<double>(columns);
    for (size_t i = 0; i < columns; ++i) mean += x[first + i] / count;
    for (size_t i = 0; i < columns; ++i) variance += std::pow(x[first + i] - mean, 2) / count;
    const double rstd = 1 / std::sqrt(variance + kEps);
    for (size_t i = 0; i < columns; ++i) {
      const double h = (x[first + i] - mean) * rstd;
      exact.y[first + i] = h * weight[i] + bias[i];
      sum += grad[first + i] * weight[i] / count;
      dot += grad[first + i] * weight[i] * h / count;
      exact.grad_weight[i] += grad[first + i] * h;
      exact.grad_bias[i] += grad[first + i];
    }
    for (size_t i = 0; i < columns; ++i) {
      const double h = (x[first + i] - mean) * rstd;
      exact.grad_x[first + i] = rstd * (grad[first + i] * weight[i] - sum - h * dot);
    }
  }
  return exact;
}

TEST(LayerNorm, IsNearThatOfDoubleAndTheSameInEveryTable) {
  for (const Storage storage : {Storage::kF32, Storage::kBf16, Storage::kF16}) {
    for (const int64_t n : {1, 2, 7, 8, 9, 15, 16, 17, 33, 100, 512, 5001}) {
      const int64_t count = kNumRows * n;
      std::vector<float> numbers = random_numbers(31, count);
      for (float& each : numbers) each += 1.5F;  // a mean that is not 0
      TestArray x(storage, numbers, 1), grad(storage, random_numbers(32, count), 2);
      std::vector<float> weight = random_numbers(33, n), bias = random_numbers(34, n);
      const Exact exact = exact_norm(x.values(), grad.values(), weight, bias);
      std::vector<uint64_t> first_y, first_back;
      std::vector<float> first_weight;
      for (const KernelTable* table : tables_here()) {
        TestArray out(storage, count, 1), back(storage, count, 3);
        std::vector<float> mean(kNumRows), rstd(kNumRows), of_weight(weight.size()),
            of_bias(weight.size());
        LayerNorm norm;
        norm.x = {storage, x.stream().data, n};
        norm.out = {storage, out.stream().data, n};
        norm.weight = weight.data();
        norm.bias = bias.data();
        norm.eps = kEps;
        norm.mean = mean.data();
        norm.rstd = rstd.data();
        table->rows.layer_norm(norm, n, {0, kNumRows});
        LayerNormGrad of;
        of.grad = {storage, grad.stream().data, n};
        of.x = norm.x;
        of.out = {storage, back.stream().data, n};
        of.weight = weight.data();
        of.mean = mean.data();
        of.rstd = rstd.data();
        of.sum_of_weight = of_weight.data();
        of.sum_of_bias = of_bias.data();
        table->rows.layer_norm_backward(of, n, {0, kNumRows});
        const std::vector<double> y = out.values(), grad_x = back.values();
        // Numbers up to 16 before the store, a few float32 roundings each; rows of one or two
        // numbers may have next to no variance, so that rstd is up to 316.
        const double more = n <= 2 ? 2e-3 : 2e-5;
        double largest = 0;  // a gradient is a difference of terms of this size
        for (const double each : exact.grad_x) largest = std::max(largest, std::abs(each));
        for (size_t i = 0; i < y.size(); ++i) {
          ASSERT_NEAR(y[i], exact.y[i],
                      1.001 * half_unit(exact.y[i], storage) + more + 1e-6 * std::abs(exact.y[i]))
              << table->name << " " << name_of(storage) << " " << n;
          ASSERT_NEAR(grad_x[i], exact.grad_x[i],
                      1.001 * half_unit(exact.grad_x[i], storage) + more + 1e-6 * largest)
              << table->name << " " << name_of(storage) << " " << n;
        }
        for (size_t i = 0; i < weight.size(); ++i) {
          ASSERT_NEAR(of_weight[i], exact.grad_weight[i], more) << table->name << " " << n;
          ASSERT_NEAR(of_bias[i], exact.grad_bias[i], 1e-5) << table->name << " " << n;
        }
        EXPECT_TRUE(out.guards_hold() && back.guards_hold());
        if (first_y.empty()) {
          first_y = out.bits(), first_back = back.bits(), first_weight = of_weight;
        }
        EXPECT_EQ(out.bits(), first_y) << table->name << " " << n;
        EXPECT_EQ(back.bits(), first_back) << table->name << " " << n;
        EXPECT_EQ(of_weight, first_weight) << table->name << " " << n;
      }
    }
  }
}

}  // namespace
}  // namespace torchamp::kernels
