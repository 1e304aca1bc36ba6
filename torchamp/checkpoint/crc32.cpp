#include "torchamp/checkpoint/crc32.h"

#include <array>
#include <bit>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace torchamp::checkpoint {
namespace {

constexpr uint32_t kPolynomial = 0xEDB88320;

// a * b mod P: polynomials over GF(2), the highest bit being the coefficient of x^0.
constexpr uint32_t multiply(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (uint32_t bit = uint32_t{1} << 31; bit != 0; bit >>= 1) {
    if ((a & bit) != 0) product ^= b;
    b = (b >> 1) ^ ((b & 1U) != 0 ? kPolynomial : 0U);  // b * x
  }
  return product;
}

// x^exponent mod P.
constexpr uint32_t power_of_x(uint64_t exponent) {
  uint32_t result = uint32_t{1} << 31;  // 1
  for (uint32_t square = uint32_t{1} << 30; exponent != 0; exponent >>= 1) {
    if ((exponent & 1U) != 0) result = multiply(result, square);
    square = multiply(square, square);
  }
  return result;
}

constexpr size_t kLanes = 16;  // bytes a step: 16 look-ups that do not wait for each other

using Tables = std::array<std::array<uint32_t, 256>, kLanes>;

// tables[k][b]: what byte b contributes when k more bytes follow it in the step.
constexpr Tables make_tables() {
  Tables tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1U) != 0 ? kPolynomial : 0U);
    tables[0][byte] = crc;
  }
  for (size_t lane = 1; lane < kLanes; ++lane) {
    for (size_t byte = 0; byte < 256; ++byte) {
      const uint32_t before = tables[lane - 1][byte];
      tables[lane][byte] = (before >> 8) ^ tables[0][before & 0xFFU];
    }
  }
  return tables;
}

constexpr Tables kTables = make_tables();
static_assert(std::endian::native == std::endian::little, "the step below reads words in place");

// The register (a checksum, complemented) after `size` more bytes.
uint32_t advance(uint32_t state, const unsigned char* bytes, size_t size) {
  for (; size >= kLanes; size -= kLanes, bytes += kLanes) {
    std::array<uint32_t, 4> words;
    std::memcpy(words.data(), bytes, kLanes);
    words[0] ^= state;
    state = 0;
    for (size_t word = 0; word < 4; ++word) {
      for (size_t byte = 0; byte < 4; ++byte) {
        state ^= kTables[kLanes - 1 - 4 * word - byte][(words[word] >> (8 * byte)) & 0xFFU];
      }
    }
  }
  for (; size > 0; --size, ++bytes) state = (state >> 8) ^ kTables[0][(state ^ *bytes) & 0xFFU];
  return state;
}

#if defined(__x86_64__)

#define TORCHAMP_CLMUL __attribute__((target("pclmul,sse2")))

constexpr size_t kFold = 64;  // bytes a step: four registers, so that products do not wait

// What the halves of a register are multiplied by to stand `bits` further on. A product of two
// such polynomials comes out one bit too low, and the polynomials have 32 of 64 bits.
constexpr long long low_factor(uint64_t bits) {
  const uint64_t factor = uint64_t{power_of_x(bits + 32)} << 1;
  return static_cast<long long>(factor);
}
constexpr long long high_factor(uint64_t bits) {
  const uint64_t factor = uint64_t{power_of_x(bits - 32)} << 1;
  return static_cast<long long>(factor);
}

TORCHAMP_CLMUL inline __m128i load(const unsigned char* bytes) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes));
}

// `value` moved on by the bits that `factors` stand for, and what lies there.
TORCHAMP_CLMUL inline __m128i fold(__m128i value, __m128i factors, __m128i there) {
  const __m128i low = _mm_clmulepi64_si128(value, factors, 0x00);
  const __m128i high = _mm_clmulepi64_si128(value, factors, 0x11);
  return _mm_xor_si128(_mm_xor_si128(low, high), there);
}

// As advance(); `size` is at least kFold. Folding keeps the remainder: the message is replaced by a
// shorter one with the same checksum (Gopal et al., "Fast CRC Computation for Generic Polynomials
// Using PCLMULQDQ Instruction", Intel 2009).
TORCHAMP_CLMUL uint32_t advance_by_clmul(uint32_t state, const unsigned char* bytes, size_t size) {
  const __m128i by_four = _mm_set_epi64x(high_factor(512), low_factor(512));
  const __m128i by_one = _mm_set_epi64x(high_factor(128), low_factor(128));
  __m128i a = _mm_xor_si128(load(bytes), _mm_cvtsi32_si128(static_cast<int>(state)));
  __m128i b = load(bytes + 16);
  __m128i c = load(bytes + 32);
  __m128i d = load(bytes + 48);
  for (bytes += kFold, size -= kFold; size >= kFold; bytes += kFold, size -= kFold) {
    a = fold(a, by_four, load(bytes));
    b = fold(b, by_four, load(bytes + 16));
    c = fold(c, by_four, load(bytes + 32));
    d = fold(d, by_four, load(bytes + 48));
  }
  a = fold(fold(fold(a, by_one, b), by_one, c), by_one, d);
  for (; size >= 16; bytes += 16, size -= 16) a = fold(a, by_one, load(bytes));
  std::array<unsigned char, 16> rest;
  _mm_storeu_si128(reinterpret_cast<__m128i*>(rest.data()), a);
  return advance(advance(0, rest.data(), rest.size()), bytes, size);
}

#undef TORCHAMP_CLMUL

#endif

}  // namespace

uint32_t crc32_by_table(uint32_t crc, const void* data, size_t size) {
  return ~advance(~crc, static_cast<const unsigned char*>(data), size);
}

uint32_t crc32(uint32_t crc, const void* data, size_t size) {
#if defined(__x86_64__)
  static const bool has_clmul = __builtin_cpu_supports("pclmul");
  if (has_clmul && size >= kFold) {
    return ~advance_by_clmul(~crc, static_cast<const unsigned char*>(data), size);
  }
#endif
  return crc32_by_table(crc, data, size);
}

uint32_t crc32_combine(uint32_t first, uint32_t second, uint64_t second_size) {
  // x^0 for no bytes; a size of 2^61 bytes and more wraps the exponent's 64 bits and cannot occur.
  return multiply(first, power_of_x(8 * second_size)) ^ second;
}

}  // namespace torchamp::checkpoint
