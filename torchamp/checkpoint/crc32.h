#pragma once
// The checksum of zip archives.

#include <cstddef>
#include <cstdint>

namespace torchamp::checkpoint {

/// CRC-32 (polynomial 0xEDB88320, as in zip and gzip) of `size` bytes, continuing from `crc`; start
/// with 0.
uint32_t crc32(uint32_t crc, const void* data, size_t size);

}  // namespace torchamp::checkpoint
