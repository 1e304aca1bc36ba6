// Conversions between float32 and what lies in memory, in every table, against rounding done in
// double with nearbyint.

#include <cfenv>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/arrays.h"

namespace torchamp::kernels {
namespace {

float from_bits(uint32_t bits) {
  float x = 0;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}
uint32_t to_bits(float x) {
  uint32_t bits = 0;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

// A binary float by its definition: `mantissa` bits, exponents from `lowest` to `highest`.
struct Format {
  int mantissa, lowest, highest;
  int exponent_bits() const { return 15 - mantissa; }

  double value(uint16_t code) const {
    const int exponent = (code >> mantissa) & ((1 << exponent_bits()) - 1);
    const int fraction = code & ((1 << mantissa) - 1);
    const double sign = (code & 0x8000) != 0 ? -1.0 : 1.0;
    if (exponent == (1 << exponent_bits()) - 1) {
      return fraction != 0 ? std::nan("") : sign * std::numeric_limits<double>::infinity();
    }
    if (exponent == 0) return sign * std::ldexp(fraction, lowest - mantissa);
    return sign * std::ldexp(fraction + (1 << mantissa), exponent - 1 + lowest - mantissa);
  }

  // To nearest even, as a value.
  double round(double x) const {
    if (x == 0.0 || !std::isfinite(x)) return x;
    const int unit = std::max(std::ilogb(x), lowest) - mantissa;
    const double rounded = std::ldexp(std::nearbyint(std::ldexp(x, -unit)), unit);
    const double largest = std::ldexp(2.0 - std::ldexp(1.0, -mantissa), highest);
    return std::abs(rounded) > largest ? std::copysign(std::numeric_limits<double>::infinity(), x)
                                       : rounded;
  }
};
constexpr Format kHalf{10, -14, 15};
constexpr Format kBfloat{7, -126, 127};

void expect_same_value(double actual, double expected, const char* table, uint32_t input) {
  if (std::isnan(expected)) {
    ASSERT_TRUE(std::isnan(actual)) << table << ", input " << std::hex << input;
  } else {
    ASSERT_EQ(actual, expected) << table << ", input " << std::hex << input;
    ASSERT_EQ(std::signbit(actual), std::signbit(expected)) << table << ", " << std::hex << input;
  }
}

std::vector<uint16_t> all_codes() {
  std::vector<uint16_t> codes(65536);
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint16_t>(i);
  return codes;
}

// Every value of the format, the points half way to the next one, and the floats around both; then
// bit patterns over the whole range.
std::vector<float> rounding_inputs(const Format& format) {
  std::vector<float> inputs;
  for (int code = 0; code < 0x8000; ++code) {
    const double here = format.value(static_cast<uint16_t>(code));
    if (!std::isfinite(here)) continue;
    const double unit =
        std::ldexp(1.0, (here == 0.0 ? format.lowest : std::max(std::ilogb(here), format.lowest)) -
                            format.mantissa);
    for (const double x : {here, here + unit / 2}) {
      const auto middle = static_cast<float>(x);
      for (const float near :
           {middle, std::nextafter(middle, 0.0F), std::nextafter(middle, 1e38F)}) {
        inputs.push_back(near);
        inputs.push_back(-near);
      }
    }
  }
  for (uint64_t bits = 0; bits < (1ULL << 32); bits += 4093) {
    inputs.push_back(from_bits(static_cast<uint32_t>(bits)));
  }
  return inputs;
}

void expect_exact_reading(Storage storage, const Format& format) {
  std::vector<uint16_t> codes = all_codes();
  std::vector<float> floats(codes.size());
  for (const KernelTable* table : tables_here()) {
    table->read({storage, codes.data()}, {0, 65536}, floats.data());
    for (size_t i = 0; i < codes.size(); ++i) {
      expect_same_value(floats[i], format.value(codes[i]), table->name, codes[i]);
    }
  }
}

void expect_nearest_writing(Storage storage, const Format& format) {
  ASSERT_EQ(std::fegetround(), FE_TONEAREST);  // nearbyint follows it
  const std::vector<float> inputs = rounding_inputs(format);
  std::vector<uint16_t> codes(inputs.size()), first;
  for (const KernelTable* table : tables_here()) {
    table->write({storage, codes.data()}, {0, static_cast<int64_t>(inputs.size())}, inputs.data());
    for (size_t i = 0; i < codes.size(); ++i) {
      expect_same_value(format.value(codes[i]), format.round(inputs[i]), table->name,
                        to_bits(inputs[i]));
    }
    if (first.empty()) first = codes;
    EXPECT_EQ(codes, first) << table->name << " writes another NaN than scalar";
  }
}

TEST(Conversion, ReadsEveryFloat16) { expect_exact_reading(Storage::kF16, kHalf); }
TEST(Conversion, ReadsEveryBfloat16) { expect_exact_reading(Storage::kBf16, kBfloat); }
TEST(Conversion, ReadsEveryStochasticBfloat16) {
  expect_exact_reading(Storage::kBf16Stochastic, kBfloat);
}
TEST(Conversion, WritesTheNearestFloat16) { expect_nearest_writing(Storage::kF16, kHalf); }
TEST(Conversion, WritesTheNearestBfloat16) { expect_nearest_writing(Storage::kBf16, kBfloat); }

// Every float32 whose upper half is any of all, with the low halves where rounding changes.
std::vector<float> split_inputs() {
  std::vector<float> inputs;
  for (uint32_t high = 0; high < 65536; ++high) {
    for (const uint32_t low : {0U, 1U, 0x7FFFU, 0x8000U, 0x8001U, 0xFFFFU}) {
      inputs.push_back(from_bits(high << 16 | low));
    }
  }
  for (const uint32_t bits : {0x3F818000U, 0x3F828000U, 0x7F7FFFFFU, 0xFF7FFFFFU, 0x00000001U,
                              0x80000001U, 0x007FFFFFU, 0x7F7F8000U, 0x7F7F7FFFU}) {
    inputs.push_back(from_bits(bits));
  }
  TestRandom random(7);
  for (int i = 0; i < 1000000; ++i) inputs.push_back(from_bits(random.bits()));
  return inputs;
}

TEST(Split, KeepsEveryFloat32AndItsNearestBfloat16) {
  const std::vector<float> inputs = split_inputs();
  const auto count = static_cast<int64_t>(inputs.size());
  std::vector<float> back(inputs.size());
  for (const KernelTable* table : tables_here()) {
    TestArray array(Storage::kBf16WithRest, count, 3);
    const Stream stream = array.stream();
    table->write(stream, {0, count}, inputs.data());
    table->read(stream, {0, count}, back.data());
    const auto* weights = static_cast<const uint16_t*>(stream.data);
    for (size_t i = 0; i < inputs.size(); ++i) {
      expect_same_value(kBfloat.value(weights[i]), kBfloat.round(inputs[i]), table->name,
                        to_bits(inputs[i]));
      if (std::isnan(inputs[i])) {
        ASSERT_TRUE(std::isnan(back[i]));
      } else {
        ASSERT_EQ(to_bits(back[i]), to_bits(inputs[i])) << table->name;
      }
    }
    EXPECT_TRUE(array.guards_hold()) << table->name;
  }
}

TEST(Split, TheTieBitTellsTwoFloatsApart) {
  // Both lie half way between two bfloat16; 0x3F82 is the even one for either.
  const std::vector<float> inputs = {from_bits(0x3F818000), from_bits(0x3F828000)};
  TestArray array(Storage::kBf16WithRest, inputs);
  const Stream stream = array.stream();
  EXPECT_EQ(static_cast<uint16_t*>(stream.data)[0], 0x3F82);
  EXPECT_EQ(static_cast<uint16_t*>(stream.data)[1], 0x3F82);
  EXPECT_EQ(static_cast<uint16_t*>(stream.rest)[0], 0x8000);
  EXPECT_EQ(static_cast<uint16_t*>(stream.rest)[1], 0x8000);
  EXPECT_EQ(stream.ties[0], 1);
}

TEST(Copy, KeepsEveryFloat32AndItsNearestFloat16) {
  const std::vector<float> inputs = rounding_inputs(kHalf);
  const auto count = static_cast<int64_t>(inputs.size());
  std::vector<float> back(inputs.size());
  for (const KernelTable* table : tables_here()) {
    TestArray array(Storage::kF16WithCopy, count, 1);
    const Stream stream = array.stream();
    table->write(stream, {0, count}, inputs.data());
    table->read(stream, {0, count}, back.data());
    EXPECT_EQ(std::memcmp(back.data(), inputs.data(), 4 * inputs.size()), 0) << table->name;
    const auto* weights = static_cast<const uint16_t*>(stream.data);
    for (size_t i = 0; i < inputs.size(); ++i) {
      expect_same_value(kHalf.value(weights[i]), kHalf.round(inputs[i]), table->name,
                        to_bits(inputs[i]));
    }
    EXPECT_TRUE(array.guards_hold()) << table->name;
  }
}

TEST(Copy, AWeightThatSomeoneWroteCountsInsteadOfItsCopy) {
  for (const KernelTable* table : tables_here()) {
    TestArray array(Storage::kF16WithCopy, random_numbers(1, 600));
    const std::vector<double> before = array.values();
    static_cast<uint16_t*>(array.stream().data)[599] = 0x4200;  // 3.0
    std::vector<float> back(600);
    table->read(array.stream(), {0, 600}, back.data());
    for (size_t i = 0; i < 599; ++i) ASSERT_EQ(back[i], before[i]) << table->name << ", " << i;
    EXPECT_EQ(back[599], 3.0F) << table->name;
  }
}

TEST(Conversion, WorksOnRangesOfAnyLengthAndStart) {
  for (const Storage storage :
       {Storage::kF32, Storage::kBf16, Storage::kF16, Storage::kBf16Stochastic,
        Storage::kBf16WithRest, Storage::kF16WithCopy, Storage::kBlock8Signed,
        Storage::kBlock8Unsigned}) {
    for (const int64_t count : {0, 1, 7, 8, 9, 15, 16, 17, 26, 50, 255, 256, 257, 511, 512, 513}) {
      for (const int64_t offset : {0, 1, 3, 7}) {
        const std::vector<float> values = random_squares(static_cast<uint64_t>(count), count);
        std::vector<uint64_t> first;
        for (const KernelTable* table : tables_here()) {
          TestArray array(storage, count, offset, 99);
          table->write(array.stream(), {0, count}, values.data());
          std::vector<float> back(static_cast<size_t>(count) + 1, 42.0F);
          table->read(array.stream(), {0, count}, back.data());
          const std::vector<double> expected = array.values();
          for (size_t i = 0; i < expected.size(); ++i) ASSERT_EQ(back[i], expected[i]);
          EXPECT_EQ(back.back(), 42.0F);
          if (table == tables_here().front()) first = array.bits();
          ASSERT_EQ(array.bits(), first)
              << table->name << ", " << name_of(storage) << ", " << count;
          ASSERT_TRUE(array.guards_hold()) << table->name << ", " << name_of(storage) << ", "
                                           << count << " elements, offset " << offset;
        }
      }
    }
  }
}

}  // namespace
}  // namespace torchamp::kernels
