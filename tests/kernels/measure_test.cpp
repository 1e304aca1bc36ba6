// measure() and multiply(): what one look at a gradient tells, and the product with two factors.

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/arrays.h"

namespace torchamp::kernels {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
const Storage kGradStorages[] = {Storage::kF32, Storage::kF64, Storage::kBf16, Storage::kF16};

std::vector<int64_t> lengths() {
  std::vector<int64_t> found = {0, 255, 256, 257, 511, 512, 513, 1100};
  for (const int64_t width : {1, 4, 8, 16}) {
    for (const int64_t n : {int64_t{1}, width - 1, width, width + 1, 3 * width + 2}) {
      found.push_back(n);
    }
  }
  return found;
}

// In f32: the product with the factor is rounded to float32. The double product is exact.
double product(Storage storage, double x, double factor) {
  return storage == Storage::kF64 ? x * factor
                                  : static_cast<double>(static_cast<float>(x * factor));
}

TEST(Measure, SumsSquaresAsALoopInLongDouble) {
  for (const KernelTable* table : tables_here()) {
    for (const Storage storage : kGradStorages) {
      for (const int64_t count : lengths()) {
        for (const double factor : {1.0, 0.125, 1.0 / 3.0}) {
          TestArray grad(storage, random_numbers(5, count), count % 4);
          const double f =
              storage == Storage::kF64 ? factor : static_cast<double>(static_cast<float>(factor));
          long double expected = 0;
          for (const double x : grad.values()) {
            const long double y = product(storage, product(storage, x, f), 0.75);
            expected += y * y;
          }
          const GradMeasure measure = table->measure(grad.grad(factor, 0.75, true), {0, count});
          // Each of at most n additions in a row is off by 2^-53 of a partial sum.
          const auto bound = static_cast<double>(expected) * static_cast<double>(count) * 0x1p-53;
          EXPECT_NEAR(measure.sum_of_squares, static_cast<double>(expected), bound)
              << table->name << ", " << name_of(storage) << ", " << count;
          EXPECT_FALSE(measure.has_nonfinite);
          EXPECT_FALSE(measure.has_nan);
        }
      }
    }
  }
}

TEST(Measure, GivesTheSameBitsInEveryTable) {
  for (const Storage storage : kGradStorages) {
    for (const int64_t count : lengths()) {
      TestArray grad(storage, random_numbers(6, count), 1);
      const double first =
          tables_here().front()->measure(grad.grad(1.0 / 3.0), {0, count}).sum_of_squares;
      for (const KernelTable* table : tables_here()) {
        EXPECT_EQ(table->measure(grad.grad(1.0 / 3.0), {0, count}).sum_of_squares, first)
            << table->name << ", " << name_of(storage) << ", " << count;
      }
    }
  }
}

TEST(Measure, SeesInfAndNanAnywhere) {
  for (const KernelTable* table : tables_here()) {
    for (const Storage storage : kGradStorages) {
      for (const int64_t count : {1, 5, 16, 17, 256, 513}) {
        for (const int64_t index : {int64_t{0}, count / 2, count - 1}) {
          for (const double bad : {kInf, -kInf, std::nan("")}) {
            TestArray grad(storage, random_numbers(8, count));
            grad.set(index, bad);
            const GradMeasure measure = table->measure(grad.grad(0.5), {0, count});
            EXPECT_TRUE(measure.has_nonfinite)
                << table->name << ", " << name_of(storage) << ", " << count << ", " << index;
            EXPECT_EQ(measure.has_nan, std::isnan(bad))
                << table->name << ", " << name_of(storage) << ", " << count << ", " << index;
          }
        }
      }
    }
  }
}

TEST(Measure, TellsNanFromInfBesideEachOther) {
  for (const KernelTable* table : tables_here()) {
    TestArray grad(Storage::kF32, random_numbers(8, 40));
    grad.set(3, kInf);
    grad.set(37, -kInf);
    EXPECT_FALSE(table->measure(grad.grad(), {0, 40}).has_nan) << table->name;
    grad.set(20, std::nan(""));
    EXPECT_TRUE(table->measure(grad.grad(), {0, 40}).has_nan) << table->name;
  }
}

TEST(Measure, FindsAnOverflowOfTheProduct) {
  // 3e38 times 2 is no float32; in double it is finite, and so is 1e200, whose square is not.
  for (const KernelTable* table : tables_here()) {
    TestArray grad(Storage::kF32, std::vector<float>(20, 3e38F));
    EXPECT_FALSE(table->measure(grad.grad(1.0), {0, 20}).has_nonfinite) << table->name;
    EXPECT_TRUE(table->measure(grad.grad(2.0), {0, 20}).has_nonfinite) << table->name;
    TestArray wide(Storage::kF64, 20);
    wide.set(7, 1e200);
    const GradMeasure measure = table->measure(wide.grad(1.0), {0, 20});
    EXPECT_FALSE(measure.has_nonfinite) << table->name;
    EXPECT_EQ(measure.sum_of_squares, kInf) << table->name;
  }
}

TEST(Measure, AnInfiniteFactorMakesInfWhateverTheLength) {
  for (const KernelTable* table : tables_here()) {
    for (const Storage storage : kGradStorages) {
      for (const int64_t count : {1, 16, 17, 513}) {
        TestArray grad(storage, random_numbers(9, count));
        const GradMeasure measure = table->measure(grad.grad(kInf), {0, count});
        EXPECT_TRUE(measure.has_nonfinite);
        EXPECT_FALSE(measure.has_nan) << table->name << ", " << name_of(storage) << ", " << count;
      }
    }
  }
}

TEST(Measure, OfAChunkDependsOnNothingElse) {
  // What multi_tensor adds up in order: any thread may measure any chunk at any time.
  for (const KernelTable* table : tables_here()) {
    TestArray grad(Storage::kF32, random_numbers(11, 2000));
    std::vector<double> forward, backward;
    for (int64_t begin = 0; begin < 2000; begin += 512) {
      const int64_t end = std::min<int64_t>(begin + 512, 2000);
      forward.push_back(table->measure(grad.grad(0.3), {begin, end}).sum_of_squares);
      std::vector<float> alone;
      for (int64_t i = begin; i < end; ++i) {
        alone.push_back(static_cast<float>(grad.values()[static_cast<size_t>(i)]));
      }
      TestArray part(Storage::kF32, alone, 3);
      EXPECT_EQ(table->measure(part.grad(0.3), {0, end - begin}).sum_of_squares, forward.back());
    }
    for (int64_t begin = 1536; begin >= 0; begin -= 512) {
      const int64_t end = std::min<int64_t>(begin + 512, 2000);
      backward.push_back(table->measure(grad.grad(0.3), {begin, end}).sum_of_squares);
    }
    std::reverse(backward.begin(), backward.end());
    EXPECT_EQ(forward, backward) << table->name;
  }
}

TEST(Measure, ChangesNothing) {
  for (const KernelTable* table : tables_here()) {
    for (const Storage storage : kGradStorages) {
      TestArray grad(storage, random_numbers(12, 300), 1);
      const std::vector<uint64_t> before = grad.bits();
      table->measure(grad.grad(0.1, 0.2, true), {0, 300});
      EXPECT_EQ(grad.bits(), before) << table->name << ", " << name_of(storage);
    }
  }
}

TEST(Multiply, RoundsEachProductAndThenTheStore) {
  for (const KernelTable* table : tables_here()) {
    for (const Storage storage : kGradStorages) {
      for (const int64_t count : lengths()) {
        TestArray grad(storage, random_numbers(13, count), count % 3);
        TestArray expected(storage, count, 0);
        const double first = static_cast<double>(0.3F), second = static_cast<double>(0.7F);
        std::vector<float> products;
        for (int64_t i = 0; i < count; ++i) {
          const double x = grad.values()[static_cast<size_t>(i)];
          const double y = product(storage, product(storage, x, first), second);
          if (storage == Storage::kF64) expected.set(i, y);
          products.push_back(static_cast<float>(y));
        }
        if (storage != Storage::kF64) expected = TestArray(storage, products);
        table->multiply(grad.grad(first, second, false), {0, count});
        EXPECT_EQ(grad.bits(), expected.bits())
            << table->name << ", " << name_of(storage) << ", " << count;
        EXPECT_TRUE(grad.guards_hold()) << table->name << ", " << name_of(storage) << ", " << count;
      }
    }
  }
}

}  // namespace
}  // namespace torchamp::kernels
