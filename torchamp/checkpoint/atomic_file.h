#pragma once
// AtomicFile: a file that appears under its name complete and on the disk, or not at all.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>

namespace torchamp::checkpoint {

/// Writes `<target>.partial`, and gives it the name `target` in commit().
///
/// Another AtomicFile for the same target, in this process or another, waits for its turn. All
/// errors are CheckpointError; destruction without commit() removes the partial file.
class AtomicFile {
 public:
  explicit AtomicFile(const std::filesystem::path& target);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  /// Appends; a signal in between is harmless.
  void write(const void* data, size_t size);
  /// Bytes written so far.
  uint64_t size() const { return size_; }
  /// Sends all to the disk, renames, and sends the folder's entry to the disk too.
  void commit();

 private:
  [[noreturn]] void fail(const std::string& action, int error) const;
  void open_partial();

  std::filesystem::path asked_;    // as the caller wrote it, for messages
  std::filesystem::path target_;   // with symbolic links followed
  std::filesystem::path partial_;  // target_ + ".partial"
  int descriptor_ = -1;
  uint64_t size_ = 0;
  bool is_committed_ = false;
};

}  // namespace torchamp::checkpoint
