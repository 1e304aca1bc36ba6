#pragma once
// The checksum of zip archives.

#include <cstddef>
#include <cstdint>

namespace torchamp::checkpoint {

/// CRC-32 (polynomial 0xEDB88320, as in zip and gzip) of `size` bytes, continuing from `crc`; start
/// with 0. Uses carry-less multiplication where the CPU has it.
uint32_t crc32(uint32_t crc, const void* data, size_t size);

/// The same by look-up tables, on any CPU.
uint32_t crc32_by_table(uint32_t crc, const void* data, size_t size);

/// The checksum of two pieces in a row, given that of each and the size of the second.
uint32_t crc32_combine(uint32_t first, uint32_t second, uint64_t second_size);

}  // namespace torchamp::checkpoint
