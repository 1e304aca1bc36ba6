#include "torchamp/checkpoint/crc32.h"

#include <array>
#include <bit>
#include <cstring>

namespace torchamp::checkpoint {
namespace {

constexpr size_t kLanes = 16;  // bytes a step: 16 look-ups that do not wait for each other

using Tables = std::array<std::array<uint32_t, 256>, kLanes>;

// tables[k][b]: what byte b contributes when k more bytes follow it in the step.
constexpr Tables make_tables() {
  Tables tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1U) != 0 ? 0xEDB88320U : 0U);
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

}  // namespace

uint32_t crc32(uint32_t crc, const void* data, size_t size) {
  const auto* bytes = static_cast<const unsigned char*>(data);
  crc = ~crc;
  for (; size >= kLanes; size -= kLanes, bytes += kLanes) {
    std::array<uint32_t, 4> words;
    std::memcpy(words.data(), bytes, kLanes);
    words[0] ^= crc;
    crc = 0;
    for (size_t word = 0; word < 4; ++word) {
      for (size_t byte = 0; byte < 4; ++byte) {
        crc ^= kTables[kLanes - 1 - 4 * word - byte][(words[word] >> (8 * byte)) & 0xFFU];
      }
    }
  }
  for (; size > 0; --size, ++bytes) crc = (crc >> 8) ^ kTables[0][(crc ^ *bytes) & 0xFFU];
  return ~crc;
}

}  // namespace torchamp::checkpoint
