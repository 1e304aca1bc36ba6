// GELU and its derivative, in every table: against double over the whole range, and the same bits
// as the scalar table.

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/arrays.h"

namespace torchamp::kernels {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
const double kPi = std::acos(-1.0);

double exact_gelu(double x, bool is_tanh) {
  if (!is_tanh) return 0.5 * x * std::erfc(-x / std::sqrt(2.0));
  const double u = std::sqrt(2 / kPi) * (x + 0.044715 * x * x * x);
  return x / (1 + std::exp(-2 * u));
}

double exact_derivative(double x, bool is_tanh) {
  if (!is_tanh) {
    return 0.5 * std::erfc(-x / std::sqrt(2.0)) + x * std::exp(-x * x / 2) / std::sqrt(2 * kPi);
  }
  if (std::abs(x) > 40) return x > 0 ? 1 : 0;
  const double u = std::sqrt(2 / kPi) * (x + 0.044715 * x * x * x);
  const double s = 1 / (1 + std::exp(-2 * u)), rest = 1 / (1 + std::exp(2 * u));
  return s + x * s * rest * 2 * std::sqrt(2 / kPi) * (1 + 3 * 0.044715 * x * x);
}

// Bit patterns over the whole range, and numbers close together where the function bends.
std::vector<float> inputs() {
  std::vector<float> x = {0.0F, -0.0F, 1e-40F, -1e-40F, 1e30F, -1e30F, 5.0F, -5.0F};
  for (uint32_t i = 0; i < 400000; ++i) {
    const auto each = std::bit_cast<float>(i * 10683U);
    if (std::isfinite(each)) x.push_back(each);
  }
  for (int i = -150000; i <= 150000; i += 3) x.push_back(static_cast<float>(i) * 1e-4F);
  return x;
}

std::vector<float> values(const KernelTable& table, const std::vector<float>& x, bool is_tanh) {
  std::vector<float> out(x.size());
  table.rows.gelu(Storage::kF32, is_tanh, x.data(), out.data(), static_cast<int64_t>(x.size()));
  return out;
}

std::vector<float> slopes(const KernelTable& table, const std::vector<float>& x, bool is_tanh) {
  const std::vector<float> ones(x.size(), 1.0F);
  std::vector<float> out(x.size());
  table.rows.gelu_backward(Storage::kF32, is_tanh, ones.data(), x.data(), out.data(),
                           static_cast<int64_t>(x.size()));
  return out;
}

TEST(Gelu, IsNearThatOfDoubleEverywhere) {
  const std::vector<float> x = inputs();
  for (const KernelTable* table : tables_here()) {
    for (const bool is_tanh : {false, true}) {
      const std::vector<float> y = values(*table, x, is_tanh), slope = slopes(*table, x, is_tanh);
      for (size_t i = 0; i < x.size(); ++i) {
        const double exact = exact_gelu(x[i], is_tanh);
        // Relative, into the far tail: what the exponential is taken of is rounded, and its error
        // grows with it. Below 1e-37 the tail loses bits as subnormals do.
        const double square = static_cast<double>(x[i]) * x[i];
        const double tail = 1e-6 + (is_tanh ? 1e-7 * std::abs(square * x[i]) : 1.2e-7 * square);
        ASSERT_LE(std::abs(y[i] - exact), std::abs(exact) * std::min(tail, 4e-5) + 1e-37)
            << table->name << " " << is_tanh << " " << x[i];
        const double exact_slope = exact_derivative(x[i], is_tanh);
        ASSERT_LE(std::abs(slope[i] - exact_slope), 5e-7)
            << table->name << " " << is_tanh << " " << x[i];
      }
    }
  }
}

TEST(Gelu, HasTheSameBitsInEveryTable) {
  const std::vector<float> x = inputs();
  for (const bool is_tanh : {false, true}) {
    const std::vector<float> y = values(*tables_here().front(), x, is_tanh);
    const std::vector<float> slope = slopes(*tables_here().front(), x, is_tanh);
    for (const KernelTable* table : tables_here()) {
      const std::vector<float> other = values(*table, x, is_tanh);
      const std::vector<float> other_slope = slopes(*table, x, is_tanh);
      for (size_t i = 0; i < x.size(); ++i) {
        ASSERT_EQ(std::bit_cast<uint32_t>(other[i]), std::bit_cast<uint32_t>(y[i]))
            << table->name << " " << x[i];
        ASSERT_EQ(std::bit_cast<uint32_t>(other_slope[i]), std::bit_cast<uint32_t>(slope[i]))
            << table->name << " " << x[i];
      }
    }
  }
}

TEST(Gelu, InfAndNanAreAsInLibTorch) {
  const auto inf = static_cast<float>(kInf);
  for (const KernelTable* table : tables_here()) {
    for (const bool is_tanh : {false, true}) {
      const std::vector<float> y = values(*table, {inf, -inf, std::nanf("")}, is_tanh);
      EXPECT_EQ(y[0], inf);
      EXPECT_TRUE(std::isnan(y[1])) << table->name << is_tanh;
      EXPECT_TRUE(std::isnan(y[2]));
      for (const float slope : slopes(*table, {inf, -inf, std::nanf("")}, is_tanh)) {
        EXPECT_TRUE(std::isnan(slope)) << table->name << is_tanh;
      }
    }
  }
}

// Half a unit in the last place at x.
double half_unit(double x, Storage storage) {
  const int mantissa = storage == Storage::kF32 ? 23 : storage == Storage::kBf16 ? 7 : 10;
  const int lowest = storage == Storage::kF16 ? -14 : -126;
  return std::ldexp(0.5, std::max(x == 0 ? lowest : std::ilogb(x), lowest) - mantissa);
}

TEST(Gelu, IsRoundedOnceAtEveryLengthAndPlace) {
  for (const Storage storage : {Storage::kF32, Storage::kBf16, Storage::kF16}) {
    for (const int64_t n : {0, 1, 7, 8, 9, 15, 16, 17, 33, 100}) {
      for (const bool is_tanh : {false, true}) {
        TestArray x(storage, random_numbers(21, n), 1), grad(storage, random_numbers(22, n), 3);
        std::vector<uint64_t> first, first_back;
        for (const KernelTable* table : tables_here()) {
          TestArray out(storage, n, 1), back(storage, n, 2);
          table->rows.gelu(storage, is_tanh, x.stream().data, out.stream().data, n);
          table->rows.gelu_backward(storage, is_tanh, grad.stream().data, x.stream().data,
                                    back.stream().data, n);
          const std::vector<double> from = x.values(), y = out.values(), g = grad.values(),
                                    slope = back.values();
          for (size_t i = 0; i < y.size(); ++i) {
            const double exact = exact_gelu(from[i], is_tanh);
            const double exact_back = g[i] * exact_derivative(from[i], is_tanh);
            EXPECT_NEAR(y[i], exact, 1.001 * half_unit(exact, storage) + 2e-6 * std::abs(exact));
            EXPECT_NEAR(slope[i], exact_back, 1.001 * half_unit(exact_back, storage) + 2e-6);
          }
          EXPECT_TRUE(out.guards_hold() && back.guards_hold());
          if (first.empty()) first = out.bits(), first_back = back.bits();
          EXPECT_EQ(out.bits(), first) << table->name;
          EXPECT_EQ(back.bits(), first_back) << table->name;
        }
      }
    }
  }
}

}  // namespace
}  // namespace torchamp::kernels
