// Rounding by chance to bfloat16: exact in the mean, told by the key, the same in every table.

#include <cmath>
#include <cstring>
#include <limits>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/arrays.h"
#include "torchamp/kernels/random.h"

namespace torchamp::kernels {
namespace {

constexpr int64_t kDraws = 1 << 16;

std::vector<uint16_t> draw(const KernelTable& table, float x, uint64_t key,
                           int64_t count = kDraws) {
  const std::vector<float> values(static_cast<size_t>(count), x);
  std::vector<uint16_t> codes(values.size());
  table.write({Storage::kBf16Stochastic, codes.data(), nullptr, nullptr, key}, {0, count},
              values.data());
  return codes;
}

float from_bits(uint32_t bits) {
  float x = 0;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

TEST(Stochastic, RoundsUpAsOftenAsThePartBelowTheCutSays) {
  const KernelTable& table = *tables_here().back();
  for (const uint32_t low : {1U, 0x100U, 0x1000U, 0x4000U, 0x7FFFU, 0x8000U, 0xC000U, 0xFFFFU}) {
    for (const uint32_t high : {0x3F80U, 0xBF81U, 0x0001U, 0x7F7EU, 0x3FFFU}) {
      const double chance = low / 65536.0;
      int64_t up = 0;
      for (const uint16_t code : draw(table, from_bits(high << 16 | low), 1234 + high)) {
        ASSERT_TRUE(code == high || code == high + 1);
        up += code == high + 1 ? 1 : 0;
      }
      // Six standard deviations of kDraws independent draws: one in 5e8 is farther off.
      const double deviation = std::sqrt(kDraws * chance * (1.0 - chance));
      EXPECT_NEAR(static_cast<double>(up), kDraws * chance, 6.0 * deviation + 1.0)
          << std::hex << high << ", " << low;
    }
  }
}

TEST(Stochastic, IsExactInTheMeanOverStepsOfOneElement) {
  // What an optimizer does: the same element under the keys of many steps.
  const float x = from_bits(0x3F803000);  // 3/16 of the way from 1.0 to the next
  int up = 0;
  constexpr int kSteps = 20000;
  for (int step = 0; step < kSteps; ++step) {
    up += draw(*tables_here().back(), x, stream_key(7, static_cast<uint64_t>(step), 3), 1)[0] ==
                  0x3F81
              ? 1
              : 0;
  }
  EXPECT_NEAR(up, kSteps * 3.0 / 16.0, 6.0 * std::sqrt(kSteps * 3.0 / 16.0 * 13.0 / 16.0));
}

TEST(Stochastic, KeepsWhatIsABfloat16AndWhatIsNotFinite) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const KernelTable* table : tables_here()) {
    for (const float x : {0.0F, -0.0F, 1.0F, -3.5F, infinity, -infinity, from_bits(0x7F7F0000U)}) {
      uint32_t bits = 0;
      std::memcpy(&bits, &x, sizeof bits);
      for (const uint16_t code : draw(*table, x, 5, 4096)) ASSERT_EQ(code, bits >> 16);
    }
    for (const uint16_t code : draw(*table, std::nanf(""), 5, 4096)) ASSERT_EQ(code, 0x7FC0);
    // Above the largest bfloat16 chance would give inf; a finite number stays finite.
    for (const float x : {std::numeric_limits<float>::max(), from_bits(0x7F7F0001U)}) {
      for (const uint16_t code : draw(*table, x, 5, 4096)) ASSERT_EQ(code, 0x7F7F);
      for (const uint16_t code : draw(*table, -x, 5, 4096)) ASSERT_EQ(code, 0xFF7F);
    }
  }
}

TEST(Stochastic, IsToldByTheKeyAndTheIndexAlone) {
  const float x = from_bits(0x3F808000);
  const std::vector<uint16_t> first = draw(*tables_here().front(), x, 42);
  for (const KernelTable* table : tables_here()) {
    EXPECT_EQ(draw(*table, x, 42), first) << table->name;
    // From another thread's chunk: the index counts from the tensor's first element.
    std::vector<uint16_t> codes(4096, 0);
    const std::vector<float> values(1024, x);
    table->write({Storage::kBf16Stochastic, codes.data(), nullptr, nullptr, 42}, {2048, 3072},
                 values.data());
    for (size_t i = 2048; i < 3072; ++i) ASSERT_EQ(codes[i], first[i]) << table->name << ", " << i;
  }
}

TEST(Stochastic, DiffersBetweenKeys) {
  // Half of kDraws fair coins agree by chance; six standard deviations of that.
  const float x = from_bits(0x3F808000);
  const std::vector<uint16_t> first = draw(*tables_here().back(), x, stream_key(1, 1, 1));
  for (const uint64_t key : {stream_key(2, 1, 1), stream_key(1, 2, 1), stream_key(1, 1, 2)}) {
    const std::vector<uint16_t> other = draw(*tables_here().back(), x, key);
    int64_t agree = 0;
    for (size_t i = 0; i < first.size(); ++i) agree += first[i] == other[i] ? 1 : 0;
    EXPECT_NEAR(static_cast<double>(agree), kDraws / 2.0, 6.0 * std::sqrt(kDraws / 4.0));
  }
}

TEST(Stochastic, NeighboursDoNotFollowEachOther) {
  const float x = from_bits(0x3F808000);
  for (const uint64_t key : {uint64_t{0}, uint64_t{1}, stream_key(0, 1, 0), ~uint64_t{0}}) {
    const std::vector<uint16_t> codes = draw(*tables_here().back(), x, key);
    for (const size_t distance : {1U, 2U, 8U, 16U, 256U, 512U, 4096U}) {
      int64_t agree = 0;
      const size_t pairs = codes.size() - distance;
      for (size_t i = 0; i < pairs; ++i) agree += codes[i] == codes[i + distance] ? 1 : 0;
      EXPECT_NEAR(static_cast<double>(agree), static_cast<double>(pairs) / 2.0,
                  6.0 * std::sqrt(static_cast<double>(pairs) / 4.0))
          << "key " << key << ", distance " << distance;
    }
  }
}

TEST(Stochastic, KeysOfStepsAndStreamsAreAllDifferent) {
  std::set<uint64_t> keys;
  for (uint64_t seed = 0; seed < 8; ++seed) {
    for (uint64_t step = 0; step < 64; ++step) {
      for (uint64_t stream = 0; stream < 64; ++stream) keys.insert(stream_key(seed, step, stream));
    }
  }
  EXPECT_EQ(keys.size(), 8u * 64u * 64u);
}

TEST(Stochastic, IndicesAboveThirtyTwoBitsAgreeInEveryTable) {
  // A tensor of more than 2^32 elements, of which these are the only ones touched.
  const int64_t begin = (int64_t{5} << 32) - 512;
  std::vector<float> values(1024, from_bits(0x3F808000));
  std::vector<uint16_t> first;
  for (const KernelTable* table : tables_here()) {
    std::vector<uint16_t> codes(1024);
    const auto origin =
        reinterpret_cast<uintptr_t>(codes.data()) - 2 * static_cast<uintptr_t>(begin);
    table->write({Storage::kBf16Stochastic, reinterpret_cast<void*>(origin), nullptr, nullptr, 9},
                 {begin, begin + 1024}, values.data());
    if (first.empty()) first = codes;
    EXPECT_EQ(codes, first) << table->name;
    for (size_t i = 0; i < codes.size(); ++i) {  // and the scalar definition says the same
      const uint32_t random = random_bits(9, static_cast<uint64_t>(begin) + i) & 0xFFFF;
      ASSERT_EQ(codes[i], random >= 0x8000 ? 0x3F81 : 0x3F80);
    }
  }
}

// v <- b2 v + (1 - b2) g^2 by AdamW's kernel, with g = 1, from v = 0; the mean over the elements.
double mean_second_moment(const KernelTable& table, Storage storage, Storage first_storage,
                          double beta2, int steps, int64_t count) {
  TestArray grad(Storage::kF32, std::vector<float>(static_cast<size_t>(count), 1.0F));
  TestArray param(Storage::kF32, count), first(first_storage, count), second(storage, count);
  for (int step = 1; step <= steps; ++step) {
    const auto t = static_cast<uint64_t>(step);
    first.set_key(stream_key(1, t, 0));
    second.set_key(stream_key(1, t, 1));
    const AdamRule rule = adam_rule(1e-3, 0.9, beta2, 1e-8, 0.0, true, false, step);
    table.adam(rule, {grad.grad(), param.stream(), first.stream(), second.stream(), {}, {}},
               {0, count});
  }
  double sum = 0;
  for (const double v : second.values()) sum += v;
  return sum / static_cast<double>(count);
}

TEST(SecondMoment, OfAConstantGradientDoesNotStandStill) {
  // E[v] is 1 - b2^t exactly when each store keeps the mean. Rounded to nearest, v stops where a
  // step of (1 - b2) (1 - v) is below half of the distance of two bfloat16 (2^-9 near 0.5).
  constexpr int kSteps = 2000;
  constexpr int64_t kCount = 4096;
  const double expected = 1.0 - std::pow(0.999, kSteps);
  const KernelTable& table = *tables_here().back();
  const double nearest =
      mean_second_moment(table, Storage::kBf16, Storage::kF32, 0.999, kSteps, kCount);
  EXPECT_LT(nearest, 0.6 * expected) << "rounding to nearest is no longer a control";
  // A store whose chance is f moves v by d (a step of the storage) with variance f (1 - f) d^2, and
  // f d is the mean step s = (1 - b2) (1 - v) or less: at most s d. Summed with the decay b2^2 a
  // step this is below d / 2 for v in [0, 1], so the mean of kCount elements is off by less than
  // 6 sqrt(d / 2 / kCount); d is 2^-8 in bfloat16.
  const double bound = 6.0 * std::sqrt(0x1p-8 / 2 / kCount);
  const double by_chance = mean_second_moment(table, Storage::kBf16Stochastic,
                                              Storage::kBf16Stochastic, 0.999, kSteps, kCount);
  EXPECT_NEAR(by_chance, expected, bound);
  // In 8 bits d is 2^-4 below 1 and 2^-3 above, and elements of a block share no chance.
  const double eight_bits = mean_second_moment(table, Storage::kBlock8Unsigned,
                                               Storage::kBlock8Signed, 0.999, kSteps, kCount);
  EXPECT_NEAR(eight_bits, expected, 6.0 * std::sqrt(0x1p-3 / 2 / kCount));
}

TEST(SecondMoment, InEightBitsKeepsItsMeanWithASlowAverage) {
  // Codes of the root of v instead of v would raise the mean with every rounding: here to twice the
  // right value.
  constexpr int kSteps = 4000;
  constexpr int64_t kCount = 4096;
  const double eight_bits = mean_second_moment(*tables_here().back(), Storage::kBlock8Unsigned,
                                               Storage::kBlock8Signed, 0.9999, kSteps, kCount);
  EXPECT_NEAR(eight_bits, 1.0 - std::pow(0.9999, kSteps), 6.0 * std::sqrt(0x1p-3 / 2 / kCount));
}

}  // namespace
}  // namespace torchamp::kernels
