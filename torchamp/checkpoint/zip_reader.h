#pragma once
// ZipReader: where the records of a torch.save archive lie, every offset checked. What the records
// hold is not its business.

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "torchamp/checkpoint/input_file.h"
#include "torchamp/checkpoint/storage_reader.h"

namespace torchamp::checkpoint {

/// Finds the uncompressed records of an archive by name. FormatError tells what is wrong with it.
class ZipReader {
 public:
  /// Whether a file that starts with these bytes is one.
  static bool recognizes(std::string_view start) { return start.starts_with("PK\x03\x04"); }

  /// `file` must outlive this object.
  explicit ZipReader(const InputFile& file);

  bool contains(const std::string& name) const { return records_.count(name) != 0; }
  /// The names of all records, sorted.
  std::vector<std::string> names() const;
  /// Where a record's bytes lie; FormatError when there is none of this name, or not stored there.
  Extent locate(const std::string& name) const;
  /// A record's bytes, their checksum compared.
  std::string read(const std::string& name) const;

 private:
  struct Record {
    uint64_t offset = 0;  // of the local header
    uint64_t size = 0;
    uint32_t crc = 0;
    uint64_t limit = 0;  // where the next record or the directory starts
    bool is_stored = true;
  };
  struct Directory {
    uint64_t offset = 0;
    uint64_t size = 0;
    uint64_t count = 0;
  };

  Directory find_directory() const;
  void read_directory(const Directory& directory);
  void forbid_overlap(uint64_t directory_offset);
  const Record& record(const std::string& name) const;

  const InputFile& file_;
  std::string top_;                        // the folder that all records lie in
  std::map<std::string, Record> records_;  // without the folder's name
};

}  // namespace torchamp::checkpoint
