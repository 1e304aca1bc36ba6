// Log-softmax and cross entropy of a row, in every table: against loops in double, and the same
// bits as the scalar table.

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/arrays.h"

namespace torchamp::kernels {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr Storage kStorages[] = {Storage::kF32, Storage::kBf16, Storage::kF16};
// None, one lane of each width less and more, several, and more than a block of float32 sums.
constexpr int64_t kLengths[] = {1, 2, 7, 8, 9, 15, 16, 17, 31, 50, 64, 100, 1000, 9001};
constexpr int64_t kNumRows = 3;

// Half a unit in the last place at x.
double half_unit(double x, Storage storage) {
  const int mantissa = storage == Storage::kF32 ? 23 : storage == Storage::kBf16 ? 7 : 10;
  const int lowest = storage == Storage::kF16 ? -14 : -126;
  return std::ldexp(0.5, std::max(x == 0 ? lowest : std::ilogb(x), lowest) - mantissa);
}

// Rows that lie `gap` elements apart, after a start that is not aligned.
struct Matrix {
  Matrix(Storage storage, int64_t columns, uint64_t seed, float scale, int64_t gap = 3)
      : stride(columns + gap), array(storage, scaled(seed, kNumRows * stride, scale), 1) {}
  static std::vector<float> scaled(uint64_t seed, int64_t count, float scale) {
    std::vector<float> numbers = random_numbers(seed, count);
    for (float& x : numbers) x *= scale;
    return numbers;
  }
  Rows rows() { return {array.storage(), array.stream().data, stride}; }
  double at(int64_t row, int64_t column) {
    if (values.empty()) values = array.values();
    return values[static_cast<size_t>(row * stride + column)];
  }
  int64_t stride;
  TestArray array;
  std::vector<double> values;
};

double log_sum_exp(Matrix& x, int64_t row, int64_t columns) {
  double largest = -kInf, sum = 0;
  for (int64_t i = 0; i < columns; ++i) largest = std::max(largest, x.at(row, i));
  for (int64_t i = 0; i < columns; ++i) sum += std::exp(x.at(row, i) - largest);
  return largest + std::log(sum);
}

TEST(Softmax, LogSumsAreNearThoseOfDoubleAndTheSameInEveryTable) {
  for (const Storage storage : kStorages) {
    for (const int64_t n : kLengths) {
      Matrix x(storage, n, 11, 5.0F);
      std::vector<LogSum> first;
      for (const KernelTable* table : tables_here()) {
        std::vector<LogSum> sums(kNumRows);
        table->rows.log_sums(x.rows(), n, {0, kNumRows}, sums.data());
        for (int64_t row = 0; row < kNumRows; ++row) {
          const LogSum sum = sums[static_cast<size_t>(row)];
          // exp() errs by 1.5 units, a partial sum of up to 256 numbers by a few more.
          EXPECT_NEAR(static_cast<double>(sum.largest) + sum.log_of_sum, log_sum_exp(x, row, n),
                      2e-6)
              << table->name << " " << name_of(storage) << " " << n;
        }
        if (first.empty()) first = sums;
        for (size_t row = 0; row < first.size(); ++row) {
          EXPECT_EQ(sums[row].largest, first[row].largest) << table->name;
          EXPECT_EQ(std::bit_cast<uint32_t>(sums[row].log_of_sum),
                    std::bit_cast<uint32_t>(first[row].log_of_sum))
              << table->name << " " << n;
        }
      }
    }
  }
}

TEST(Softmax, LogSoftmaxIsRoundedOnceAndItsGradientToo) {
  for (const Storage storage : kStorages) {
    for (const int64_t n : kLengths) {
      Matrix x(storage, n, 12, 4.0F), grad(storage, n, 13, 1.0F, 5);
      std::vector<uint64_t> first_out, first_back;
      for (const KernelTable* table : tables_here()) {
        Matrix out(storage, n, 14, 1.0F, 1), back(storage, n, 15, 1.0F, 2);
        table->rows.log_softmax(x.rows(), out.rows(), n, {0, kNumRows});
        table->rows.log_softmax_backward(grad.rows(), out.rows(), back.rows(), n, {0, kNumRows});
        for (int64_t row = 0; row < kNumRows; ++row) {
          const double lse = log_sum_exp(x, row, n);
          double sum = 0;
          for (int64_t i = 0; i < n; ++i) sum += grad.at(row, i);
          for (int64_t i = 0; i < n; ++i) {
            const double exact = x.at(row, i) - lse;
            ASSERT_NEAR(out.at(row, i), exact, half_unit(exact, storage) + 4e-6)
                << table->name << " " << name_of(storage) << " " << n;
            const double exact_back = grad.at(row, i) - std::exp(out.at(row, i)) * sum;
            ASSERT_NEAR(back.at(row, i), exact_back,
                        1.001 * half_unit(exact_back, storage) + 1e-6 * (1 + std::abs(sum)))
                << table->name << " " << name_of(storage) << " " << n;
          }
        }
        EXPECT_TRUE(out.array.guards_hold() && back.array.guards_hold()) << table->name;
        // What lies between the rows is as it was.
        Matrix untouched(storage, n, 14, 1.0F, 1);
        EXPECT_EQ(out.array.values()[static_cast<size_t>(n)],
                  untouched.array.values()[static_cast<size_t>(n)]);
        if (first_out.empty()) first_out = out.array.bits(), first_back = back.array.bits();
        EXPECT_EQ(out.array.bits(), first_out) << table->name << " " << n;
        EXPECT_EQ(back.array.bits(), first_back) << table->name << " " << n;
      }
    }
  }
}

TEST(Softmax, CrossEntropyGradientIsRoundedOnce) {
  for (const Storage storage : kStorages) {
    for (const int64_t n : kLengths) {
      for (const float of_weights : {0.0F, 0.01F}) {
        Matrix x(storage, n, 16, 4.0F);
        std::vector<float> weight = random_squares(17, n);
        std::vector<LogSum> sums(kNumRows);
        const std::vector<CrossEntropyGrad> grads = {{0.3F, of_weights, 0.25F, 0},
                                                     {0.3F, of_weights, 0.25F, n - 1},
                                                     {0.3F, of_weights, 0.25F, n / 2}};
        tables_here().front()->rows.log_sums(x.rows(), n, {0, kNumRows}, sums.data());
        std::vector<uint64_t> first;
        for (const KernelTable* table : tables_here()) {
          Matrix out(storage, n, 18, 1.0F, 1);
          table->rows.cross_entropy_backward(x.rows(), sums.data(), grads.data(), weight.data(),
                                             out.rows(), n, {0, kNumRows});
          for (int64_t row = 0; row < kNumRows; ++row) {
            const CrossEntropyGrad& grad = grads[static_cast<size_t>(row)];
            const double lse = log_sum_exp(x, row, n);
            for (int64_t i = 0; i < n; ++i) {
              const double exact = grad.of_softmax * std::exp(x.at(row, i) - lse) -
                                   grad.of_weights * weight[static_cast<size_t>(i)] -
                                   (i == grad.target ? grad.at_target : 0.0);
              ASSERT_NEAR(out.at(row, i), exact, 1.001 * half_unit(exact, storage) + 1.5e-6)
                  << table->name << " " << name_of(storage) << " " << n << " " << i;
            }
          }
          EXPECT_TRUE(out.array.guards_hold());
          if (first.empty()) first = out.array.bits();
          EXPECT_EQ(out.array.bits(), first) << table->name << " " << n;
        }
      }
    }
  }
}

// exp() itself: where largest and log_of_sum are 0, the gradient is exp(x).
TEST(Softmax, ExponentialsAreNearThoseOfDoubleEverywhere) {
  std::vector<float> x = {0.0F,    -0.0F,   kInf,    -kInf,  std::nanf(""), 88.0F,
                          88.7F,   88.75F,  89.0F,   1e9F,   -87.33F,       -87.34F,
                          -100.0F, -103.9F, -104.0F, -1e30F, 1e-40F};
  for (uint32_t i = 0; i < 400000; ++i) {
    const auto each = std::bit_cast<float>(i * 10683U);
    if (std::abs(each) < 120.0F) x.push_back(each);
  }
  for (int i = -104000; i <= 89000; i += 7) x.push_back(static_cast<float>(i) * 0.001F);
  const auto n = static_cast<int64_t>(x.size());
  const LogSum none{0.0F, 0.0F};
  const CrossEntropyGrad all{1.0F, 0.0F, 0.0F, 0};
  std::vector<float> first;
  for (const KernelTable* table : tables_here()) {
    std::vector<float> result(x.size());
    table->rows.cross_entropy_backward({Storage::kF32, x.data(), n}, &none, &all, nullptr,
                                       {Storage::kF32, result.data(), n}, n, {0, 1});
    if (first.empty()) first = result;
    for (size_t i = 0; i < x.size(); ++i) {
      const double exact = std::exp(static_cast<double>(x[i]));
      if (std::isnan(exact)) {
        ASSERT_TRUE(std::isnan(result[i])) << table->name;
        continue;
      }
      if (exact > std::numeric_limits<float>::max()) {
        ASSERT_EQ(result[i], kInf) << table->name << " " << x[i];
        continue;
      }
      ASSERT_LE(std::abs(result[i] - exact), 1.5 * 2 * half_unit(exact, Storage::kF32))
          << table->name << " " << x[i];
      ASSERT_EQ(std::bit_cast<uint32_t>(result[i]), std::bit_cast<uint32_t>(first[i]))
          << table->name << " " << x[i];
    }
  }
}

TEST(Softmax, InfAndNanGoWhereTheyGoInDouble) {
  const float nan = std::nanf("");
  for (const KernelTable* table : tables_here()) {
    for (const int64_t n : {5, 16, 40}) {
      for (const int64_t place : {int64_t{0}, n / 2, n - 1}) {
        for (const float odd : {kInf, -kInf, nan}) {
          std::vector<float> x(static_cast<size_t>(n), 1.0F);
          x[static_cast<size_t>(place)] = odd;
          std::vector<float> out(x.size());
          table->rows.log_softmax({Storage::kF32, x.data(), n}, {Storage::kF32, out.data(), n}, n,
                                  {0, 1});
          for (int64_t i = 0; i < n; ++i) {
            const float y = out[static_cast<size_t>(i)];
            if (odd == -kInf) {
              const double exact = i == place ? -kInf : -std::log(static_cast<double>(n - 1));
              EXPECT_NEAR(i == place ? 0.0 : y, i == place ? 0.0 : exact, 1e-6) << table->name;
              if (i == place) {
                EXPECT_EQ(y, -kInf) << table->name;
              }
            } else {
              EXPECT_TRUE(std::isnan(y)) << table->name << " " << odd << " " << i;
            }
          }
        }
      }
    }
    std::vector<float> x(20, -kInf), out(20);
    table->rows.log_softmax({Storage::kF32, x.data(), 20}, {Storage::kF32, out.data(), 20}, 20,
                            {0, 1});
    for (const float y : out) EXPECT_TRUE(std::isnan(y)) << table->name;
  }
}

// A row of two million numbers: the sum of equal exponentials is their number.
TEST(Softmax, HugeRowsKeepTheirDigits) {
  constexpr int64_t kLong = 2000003;
  for (const KernelTable* table : tables_here()) {
    std::vector<float> x(kLong, 3.0F);
    LogSum sum{};
    table->rows.log_sums({Storage::kF32, x.data(), kLong}, kLong, {0, 1}, &sum);
    EXPECT_EQ(sum.largest, 3.0F);
    EXPECT_NEAR(sum.log_of_sum, std::log(static_cast<double>(kLong)), 1e-6) << table->name;
    double total = 0;
    table->rows.weighted_sums({Storage::kF32, x.data(), kLong}, nullptr, kLong, {0, 1}, &total);
    EXPECT_NEAR(total, 3.0 * kLong, 0.1) << table->name;
  }
}

}  // namespace
}  // namespace torchamp::kernels
