#pragma once
// InputFile: a file that is read at any place, or mapped. What its bytes mean is not its business.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "torchamp/checkpoint/format_error.h"

namespace torchamp::checkpoint {

/// An open regular file. CheckpointError, begun with "[who]" and the path, when it cannot be opened
/// or read. Reads may run in several threads.
class InputFile {
 public:
  InputFile(const std::filesystem::path& path, std::string who);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  const std::filesystem::path& path() const { return path_; }
  /// Bytes when it was opened.
  uint64_t size() const { return size_; }
  /// Reads exactly `size` bytes; FormatError when the file ends before.
  void read_at(uint64_t offset, void* destination, size_t size) const;
  std::string read_at(uint64_t offset, size_t size) const;
  /// The whole file, size() bytes, as private memory: writes stay in this process. Mapped by the
  /// first call, for as long as any result lives.
  std::shared_ptr<char> map();

 private:
  [[noreturn]] void fail(const std::string& reason) const;

  std::filesystem::path path_;
  std::string who_;
  int descriptor_ = -1;
  uint64_t size_ = 0;
  std::shared_ptr<char> map_;
};

/// What `read` gives of the file at `path`. Every fault becomes a CheckpointError that begins with
/// "[who]" and the path.
template <typename Read>
auto read_file(const char* who, const std::filesystem::path& path, Read read) {
  return told_after(std::string("[") + who + "] '" + path.string() + "' cannot be read: ", [&] {
    InputFile file(path, who);
    return read(file);
  });
}

}  // namespace torchamp::checkpoint
