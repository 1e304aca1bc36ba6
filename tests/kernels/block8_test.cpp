// Blocks of 8 bits: each value becomes one of the two codes around it, exact in the mean.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/arrays.h"

namespace torchamp::kernels {
namespace {

const Storage kBoth[] = {Storage::kBlock8Signed, Storage::kBlock8Unsigned};

// The magnitudes that codes stand for, in units of the block's scale, by their definition: 3
// mantissa bits, exponents from 2^-14 (signed) or 2^-30 (unsigned) to 2^0, subnormals below.
std::vector<double> code_values(Storage storage) {
  const int lowest = storage == Storage::kBlock8Signed ? -14 : -30;
  std::vector<double> values;
  for (int fraction = 0; fraction < 8; ++fraction) {
    values.push_back(std::ldexp(fraction, lowest - 3));
  }
  for (int exponent = lowest; exponent <= 0; ++exponent) {
    for (int fraction = 8; fraction < 16; ++fraction) {
      values.push_back(std::ldexp(fraction, exponent - 3));
    }
  }
  return values;
}

float scale_of(TestArray& array, int64_t block) {
  return static_cast<const float*>(array.stream().rest)[block];
}

// Magnitudes over 2^-20 to 1 of the largest, and the largest itself.
std::vector<float> wide_values(Storage storage, uint64_t seed, int64_t count, float largest) {
  TestRandom random(seed);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& x : values) {
    x = largest * static_cast<float>(std::exp2(-20.0 * random.unit()));
    if (storage == Storage::kBlock8Signed && random.bits() >= 0x80000000U) x = -x;
  }
  values.front() = largest;
  return values;
}

TEST(Block8, EveryCodeReadsAsItsDefinitionSays) {
  for (const KernelTable* table : tables_here()) {
    for (const Storage storage : kBoth) {
      const std::vector<double> magnitudes = code_values(storage);
      ASSERT_EQ(magnitudes.size(), storage == Storage::kBlock8Signed ? 128u : 256u);
      std::vector<uint8_t> codes(256);
      for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint8_t>(i);
      float scale = 0.25F;
      std::vector<float> values(256);
      table->read({storage, codes.data(), &scale}, {0, 256}, values.data());
      for (size_t i = 0; i < codes.size(); ++i) {
        const double magnitude = 0.25 * magnitudes[i % magnitudes.size()];
        EXPECT_EQ(values[i], i < magnitudes.size() ? magnitude : -magnitude) << table->name << i;
      }
    }
  }
}

TEST(Block8, EachValueBecomesOneOfTheTwoCodesAroundIt) {
  for (const KernelTable* table : tables_here()) {
    for (const Storage storage : kBoth) {
      const std::vector<double> magnitudes = code_values(storage);
      for (const float largest : {1.0F, 1.875F, 1.9F, 3e-5F, 7e20F, 1e-24F}) {
        const std::vector<float> values = wide_values(storage, 3, 700, largest);
        TestArray array(storage, 700, 1, 77);
        table->write(array.stream(), {0, 700}, values.data());
        const std::vector<double> read = array.values();
        for (size_t i = 0; i < values.size(); ++i) {
          const double scale = scale_of(array, static_cast<int64_t>(i) / kBlock8);
          const double r = std::abs(static_cast<double>(values[i])) / scale;
          const auto above = std::lower_bound(magnitudes.begin(), magnitudes.end(), r);
          ASSERT_NE(above, magnitudes.end()) << "above the top code: " << r;
          const double below = *above == r ? r : *(above - 1);
          const double got = std::abs(read[i]) / scale;
          const bool lifted = storage == Storage::kBlock8Unsigned && got == magnitudes[1];
          ASSERT_TRUE(got == *above || got == below || (lifted && r < magnitudes[1]))
              << table->name << ", " << name_of(storage) << ", " << values[i] << " became "
              << read[i];
          ASSERT_TRUE(read[i] == 0.0 || std::signbit(read[i]) == std::signbit(values[i]));
        }
      }
    }
  }
}

TEST(Block8, IsOffByAnEighthOrTheSmallestCode) {
  // Two codes of one exponent are an eighth of its power of two apart, subnormal ones 2^-17 (2^-33)
  // of the scale, and the scale is below 16/15 of the largest: 2^e with 1.875 2^e >= largest, and
  // largest > 1.875 2^(e - 1).
  for (const KernelTable* table : tables_here()) {
    for (const Storage storage : kBoth) {
      const std::vector<float> values = wide_values(storage, 4, 256, 5.0F);
      TestArray array(storage, 256, 0, 1);
      table->write(array.stream(), {0, 256}, values.data());
      const double smallest =
          5.0 * 16.0 / 15.0 * (storage == Storage::kBlock8Signed ? 0x1p-17 : 0x1p-33);
      const std::vector<double> read = array.values();
      for (size_t i = 0; i < values.size(); ++i) {
        EXPECT_LE(std::abs(read[i] - values[i]), std::max(std::abs(values[i]) / 8.0, smallest))
            << table->name << ", " << name_of(storage);
      }
    }
  }
}

TEST(Block8, IsExactInTheMean) {
  constexpr int kKeys = 4000;
  for (const Storage storage : kBoth) {
    const std::vector<double> magnitudes = code_values(storage);
    const std::vector<float> values = wide_values(storage, 5, 256, 1.5F);
    std::vector<double> sums(256, 0.0);
    TestArray array(storage, 256);
    for (int key = 0; key < kKeys; ++key) {
      array.set_key(stream_key(3, static_cast<uint64_t>(key), 0));
      tables_here().back()->write(array.stream(), {0, 256}, values.data());
      const std::vector<double> read = array.values();
      for (size_t i = 0; i < sums.size(); ++i) sums[i] += read[i];
    }
    for (size_t i = 0; i < sums.size(); ++i) {
      const double x = std::abs(static_cast<double>(values[i])) / scale_of(array, 0);
      const auto above = std::lower_bound(magnitudes.begin(), magnitudes.end(), x);
      const double step = *above == x ? 0.0 : *above - *(above - 1);
      // A coin with chance p of a step d deviates by d sqrt(p (1 - p) / n); six of them. The chance
      // has 20 bits: 2^-20 d of bias.
      const double p = step == 0.0 ? 0.0 : 1.0 - (*above - x) / step;
      const double bound = 6.0 * step * std::sqrt(p * (1.0 - p) / kKeys) + step * 0x1p-20 +
                           6.0 * step / kKeys;  // where p kKeys is small the law is Poisson's
      EXPECT_NEAR(std::abs(sums[i]) / kKeys / scale_of(array, 0), x, bound)
          << name_of(storage) << ", " << values[i];
    }
  }
}

TEST(Block8, ANumberThatHasACodeKeepsIt) {
  for (const KernelTable* table : tables_here()) {
    for (const Storage storage : kBoth) {
      std::vector<float> values;
      for (const double x : code_values(storage)) values.push_back(static_cast<float>(x * 64.0));
      const std::vector<float> before = values;
      TestArray array(storage, static_cast<int64_t>(values.size()));
      for (uint64_t key = 0; key < 200; ++key) {
        array.set_key(stream_key(9, key, 1));
        table->write(array.stream(), {0, array.count()}, values.data());
        table->read(array.stream(), {0, array.count()}, values.data());
      }
      EXPECT_EQ(values, before) << table->name << ", " << name_of(storage);
    }
  }
}

TEST(Block8, NothingPositiveBecomesZeroInTheUnsignedOne) {
  for (const KernelTable* table : tables_here()) {
    for (const float largest : {1.0F, 1e30F, 1e-30F, 1e-37F, 1e-44F}) {
      std::vector<float> values(256, std::numeric_limits<float>::denorm_min());
      values[17] = 0.0F;
      values[255] = largest;
      TestArray array(Storage::kBlock8Unsigned, 256);
      table->write(array.stream(), {0, 256}, values.data());
      const std::vector<double> read = array.values();
      for (size_t i = 0; i < read.size(); ++i) {
        ASSERT_EQ(read[i] > 0.0, values[i] > 0.0) << table->name << ", " << largest << ", " << i;
        // No code is a subnormal float32, which a CPU may be told to take for zero.
        ASSERT_TRUE(read[i] == 0.0 || read[i] >= std::numeric_limits<float>::min()) << read[i];
      }
    }
  }
}

TEST(Block8, ABlockOfZerosStaysZero) {
  for (const KernelTable* table : tables_here()) {
    for (const Storage storage : kBoth) {
      TestArray array(storage, std::vector<float>(300, 1.0F), 1);
      const std::vector<float> zeros(300, 0.0F);
      table->write(array.stream(), {0, 300}, zeros.data());
      for (const double x : array.values()) ASSERT_EQ(x, 0.0) << table->name;
      // As new memory is: no scale yet.
      TestArray fresh(storage, 300);
      for (const double x : fresh.values()) ASSERT_EQ(x, 0.0) << table->name;
    }
  }
}

TEST(Block8, ABlockOfSubnormalsIsFiniteAndSmall) {
  for (const KernelTable* table : tables_here()) {
    for (const Storage storage : kBoth) {
      std::vector<float> values;
      for (int i = 0; i < 256; ++i) values.push_back(std::ldexp(1.0F, -149 + i % 20));
      TestArray array(storage, 256);
      table->write(array.stream(), {0, 256}, values.data());
      for (const double x : array.values()) {
        // The smallest step of any block is 2^-17 (2^-33) of the smallest scale, 2^-93.
        ASSERT_LE(x, storage == Storage::kBlock8Signed ? 0x1p-110 : 0x1p-126) << table->name;
        ASSERT_GE(x, 0.0) << table->name;
      }
    }
  }
}

TEST(Block8, TheLargestFloatsStayFinite) {
  for (const KernelTable* table : tables_here()) {
    for (const Storage storage : kBoth) {
      for (const float x : {std::numeric_limits<float>::max(), 0x1.Ep126F, 0x1.Fp126F, 1e38F}) {
        TestArray array(storage, 256);
        const std::vector<float> values(256, x);
        table->write(array.stream(), {0, 256}, values.data());
        for (const double read : array.values()) {
          ASSERT_GE(read, std::min<double>(x * 0.875, 0x1.Ep126)) << table->name;
          ASSERT_LE(read, std::min<double>(x * 1.125, 0x1.Ep126)) << table->name;
        }
      }
    }
  }
}

TEST(Block8, InfOrNanMakesItsBlockNanAndNoOther) {
  const double infinity = std::numeric_limits<double>::infinity();
  for (const KernelTable* table : tables_here()) {
    for (const Storage storage : kBoth) {
      for (const int bad_index : {256, 300, 511}) {
        for (const double bad : {infinity, -infinity, std::nan("")}) {
          std::vector<float> values = random_squares(6, 700);
          values[static_cast<size_t>(bad_index)] = static_cast<float>(bad);
          TestArray array(storage, 700, 1);
          table->write(array.stream(), {0, 700}, values.data());
          const std::vector<double> read = array.values();
          for (size_t i = 0; i < read.size(); ++i) {
            ASSERT_EQ(std::isnan(read[i]), i / 256 == 1) << table->name << ", " << i;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace torchamp::kernels
