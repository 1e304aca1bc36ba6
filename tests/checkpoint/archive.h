#pragma once
// Builds a .pt archive out of given records, well formed but for what a test makes wrong. Written
// from the zip format's description, independently of the library.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace torchamp {

inline std::string little_endian(uint64_t value, int count) {
  std::string bytes;
  for (int i = 0; i < count; ++i) {
    bytes.push_back(i < 8 ? static_cast<char>((value >> (8 * i)) & 0xFFU) : '\0');
  }
  return bytes;
}

inline uint32_t bitwise_crc32(const std::string& bytes) {
  uint32_t crc = 0xFFFFFFFFU;
  for (const char byte : bytes) {
    crc ^= static_cast<unsigned char>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1U) != 0 ? 0xEDB88320U : 0U);
  }
  return ~crc;
}

using Records = std::vector<std::pair<std::string, std::string>>;  // name, bytes

/// A zip archive of stored records in folder "a", without zip64 fields and without padding.
inline std::string make_archive(const Records& records) {
  std::string file;
  std::string directory;
  for (const auto& [short_name, bytes] : records) {
    const std::string name = "a/" + short_name;
    const uint64_t offset = file.size();
    const std::string sizes = little_endian(bitwise_crc32(bytes), 4) +
                              little_endian(bytes.size(), 4) + little_endian(bytes.size(), 4);
    const std::string common = little_endian(0, 8) + sizes + little_endian(name.size(), 2);
    file += "PK\x03\x04" + little_endian(10, 2) + common + little_endian(0, 2) + name + bytes;
    directory += "PK\x01\x02" + little_endian(10, 2) + little_endian(10, 2) + common +
                 little_endian(0, 12) + little_endian(offset, 4) + name;
  }
  const uint64_t start = file.size();
  return file + directory + std::string("PK\x05\x06") + little_endian(0, 4) +
         little_endian(records.size(), 2) + little_endian(records.size(), 2) +
         little_endian(directory.size(), 4) + little_endian(start, 4) + little_endian(0, 2);
}

/// One that holds this pickle and one storage of these bytes.
inline std::string make_checkpoint(const std::string& pickle, const std::string& storage = "") {
  return make_archive({{"data.pkl", pickle}, {"data/0", storage}, {"version", "3\n"}});
}

}  // namespace torchamp
