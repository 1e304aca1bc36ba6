#pragma once
// ByteFile: the bytes of a data file, plain or gzip, with errors that say where they end. Formats
// are the readers' business.

#include <cstdint>
#include <filesystem>
#include <string>

namespace torchamp::train {

/// A file read from front to back. Whether it is gzip is told by its first bytes, not by its name:
/// browsers decompress downloads and keep the name.
class ByteFile {
 public:
  /// `who` opens every error text. Errors: DataError when there is no such file or it cannot be
  /// read.
  ByteFile(std::string who, std::filesystem::path path);
  ByteFile(const ByteFile&) = delete;
  ByteFile& operator=(const ByteFile&) = delete;
  ~ByteFile();

  /// Reads exactly `size` bytes.
  ///
  /// Errors: DataError naming file, byte and `expected` when the file ends before or is damaged.
  void read(void* into, uint64_t size, const std::string& expected);
  /// Everything that is left, to the end of the file.
  std::string read_all();
  /// Checks that nothing is left, and for gzip the checksum with it.
  void expect_end(const std::string& expected);

  /// Bytes given out so far; of the decompressed contents when the file is gzip.
  uint64_t offset() const { return offset_; }
  /// At most so many bytes are left: exact for a plain file, by deflate's best ratio for gzip. Ask
  /// before allocating what a header promises.
  uint64_t max_remaining() const;
  const std::filesystem::path& path() const { return path_; }

  /// Throws DataError "[who] 'path' <what came>, at byte N; <accepted>." with N = `byte`.
  [[noreturn]] void fail(uint64_t byte, const std::string& came, const std::string& accepted) const;

 private:
  uint64_t read_some(void* into, uint64_t size);

  std::string who_;
  std::filesystem::path path_;
  void* file_ = nullptr;  // zlib's gzFile, whose header stays in the .cpp
  uint64_t file_size_ = 0;
  uint64_t offset_ = 0;
  bool is_gzip_ = false;
};

}  // namespace torchamp::train
