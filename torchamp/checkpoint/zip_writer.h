#pragma once
// ZipWriter: the archive layout of torch.save, byte for byte. What the records hold is not its
// business.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "torchamp/checkpoint/atomic_file.h"

namespace torchamp::checkpoint {

/// Appends uncompressed records, each aligned to 64 bytes for memory mapping, then the directory.
class ZipWriter {
 public:
  /// Records are named `<top>/<name>`. `file` must outlive the writer.
  ZipWriter(AtomicFile& file, std::string top);

  void add(std::string_view name, const void* data, size_t size);
  void add(std::string_view name, std::string_view text) { add(name, text.data(), text.size()); }
  /// Writes the directory; nothing can be added afterwards.
  void finish();

 private:
  struct Record {
    std::string name;
    uint64_t offset;
    uint64_t size;
    uint32_t crc;
  };

  AtomicFile& file_;
  std::string top_;
  std::vector<Record> records_;
};

}  // namespace torchamp::checkpoint
