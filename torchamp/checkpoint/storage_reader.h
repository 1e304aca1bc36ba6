#pragma once
// StorageReader: storages made of a file's bytes, read or mapped. Which bytes is the container's
// business (zip_reader.h, legacy_reader.h), what they hold that of tensor_builder.h.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/Storage.h>

#include "torchamp/checkpoint/input_file.h"

namespace torchamp::checkpoint {

/// Consecutive bytes of a file.
struct Extent {
  std::string name;  // for messages: record 'data/0'
  uint64_t offset = 0;
  uint64_t size = 0;
  std::optional<uint32_t> crc;  // CRC-32, where the file tells one
};

/// Makes storages of the extents of one file.
class StorageReader {
 public:
  /// `is_mapped`: storages lie in the file's map; `is_verified`: checksums are compared. The file
  /// must outlive this object, not the storages.
  StorageReader(InputFile& file, bool is_mapped, bool is_verified)
      : file_(file), is_mapped_(is_mapped), is_verified_(is_verified) {}

  /// A CPU storage that holds the extent's bytes after finish(). One whose place in the file is not
  /// a multiple of `alignment` is copied even when others are mapped.
  at::Storage storage(const Extent& extent, size_t alignment);
  /// Compares the extent's checksum in finish().
  void check(const Extent& extent);
  /// Reads and compares what was asked for, in a few threads. FormatError names the extent whose
  /// checksum is another.
  void finish();

 private:
  struct Job {
    Extent extent;
    char* destination = nullptr;  // nullptr: to be checked only
    at::Storage owner;
  };

  InputFile& file_;
  bool is_mapped_;
  bool is_verified_;
  std::vector<Job> jobs_;
};

}  // namespace torchamp::checkpoint
