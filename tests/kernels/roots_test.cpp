// estimated_roots(): within its bound of the exact root everywhere, the same bits in every table.

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/arrays.h"

namespace torchamp::kernels {
namespace {

std::vector<float> numbers() {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  std::vector<float> found = {0.0F,
                              -0.0F,
                              kInf,
                              -kInf,
                              std::nanf(""),
                              -1.0F,
                              0x1p-149F,
                              0x1p-127F,
                              0x1p-126F,
                              1.0F,
                              0x1.FFEp+127F,
                              std::nextafterf(0x1.FFEp+127F, kInf),
                              std::numeric_limits<float>::max(),
                              std::nextafterf(0x1p-126F, 0.0F)};
  for (uint32_t i = 0; i < 200000; ++i) {
    found.push_back(std::bit_cast<float>(i * 10683U % 0x7F800000U));
  }
  return found;
}

TEST(EstimatedRoots, AreNearTheExactRoot) {
  for (const KernelTable* table : tables_here()) {
    const std::vector<float> x = numbers();
    std::vector<float> roots = x;
    table->estimated_roots(static_cast<int64_t>(x.size()), roots.data());
    for (size_t i = 0; i < x.size(); ++i) {
      const double exact = std::sqrt(static_cast<double>(x[i]));
      if (!(exact > 0) || std::isinf(exact)) {  // -0, 0, inf and NaN as std::sqrt has them
        const auto expected = static_cast<float>(exact);
        EXPECT_TRUE(std::isnan(exact)
                        ? std::isnan(roots[i])
                        : std::bit_cast<uint32_t>(roots[i]) == std::bit_cast<uint32_t>(expected))
            << table->name << ", x = " << x[i] << ", root " << roots[i];
        continue;
      }
      // One of the two numbers next to the exact root, and no more than 3/4 of their distance off.
      const double ulp = std::ldexp(1.0, std::ilogb(exact) - 23);
      ASSERT_LE(std::abs(roots[i] - exact), 0.751 * ulp) << table->name << ", x = " << x[i];
    }
  }
}

TEST(EstimatedRoots, AreTheSameInEveryTableAndAtEveryPlace) {
  const std::vector<float> x = numbers();
  std::vector<uint32_t> expected;
  for (const float each : x) {
    float root = each;
    tables_here().front()->estimated_roots(1, &root);
    expected.push_back(std::bit_cast<uint32_t>(root));
  }
  for (const KernelTable* table : tables_here()) {
    for (const size_t start : {size_t{0}, size_t{1}, size_t{7}}) {
      std::vector<float> roots(x.begin() + static_cast<ptrdiff_t>(start), x.end());
      table->estimated_roots(static_cast<int64_t>(roots.size()), roots.data());
      for (size_t i = 0; i < roots.size(); ++i) {
        if (std::isnan(roots[i]) && std::isnan(std::bit_cast<float>(expected[start + i]))) continue;
        ASSERT_EQ(std::bit_cast<uint32_t>(roots[i]), expected[start + i])
            << table->name << ", x = " << x[start + i];
      }
    }
  }
}

}  // namespace
}  // namespace torchamp::kernels
