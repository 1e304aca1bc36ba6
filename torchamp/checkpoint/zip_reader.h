#pragma once
// ZipReader: the records of a torch.save archive, every offset and checksum checked. What the
// records hold is not its business.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace torchamp::checkpoint {

/// Opens an archive of uncompressed records and reads them by name. FormatError tells what is wrong
/// with it; CheckpointError that the file cannot be opened or read at all.
class ZipReader {
 public:
  explicit ZipReader(const std::filesystem::path& path);
  ~ZipReader();
  ZipReader(const ZipReader&) = delete;
  ZipReader& operator=(const ZipReader&) = delete;

  bool contains(const std::string& name) const { return records_.count(name) != 0; }
  /// Bytes of a record; FormatError when there is none of this name.
  uint64_t size(const std::string& name) const;
  /// Reads the whole record into `destination`, size(name) bytes, and checks it.
  void read(const std::string& name, void* destination) const;
  std::string read(const std::string& name) const;

  uint64_t file_size() const { return file_size_; }

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

  void read_at(uint64_t offset, void* destination, size_t size) const;
  void refuse_other_formats() const;
  Directory find_directory() const;
  void read_directory(const Directory& directory);
  void forbid_overlap(uint64_t directory_offset);
  const Record& record(const std::string& name) const;

  std::filesystem::path path_;
  int descriptor_ = -1;
  uint64_t file_size_ = 0;
  std::string top_;                        // the folder that all records lie in
  std::map<std::string, Record> records_;  // without the folder's name
};

}  // namespace torchamp::checkpoint
