#pragma once
// AtomicFile: a file that appears under its name complete and on the disk, or not at all.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace torchamp::checkpoint {

/// Where a file of this name really lies: symbolic links of its last part are followed, also to
/// what is not there yet.
std::filesystem::path follow_links(const std::filesystem::path& path);

/// Writes `<target>.partial`, and gives it the name `target` in commit().
///
/// Another AtomicFile for the same target, in this process or another, waits for its turn. The mode
/// of the file that is replaced is kept, and its owner where this user may give files away. All
/// errors are CheckpointError; destruction without commit() removes the partial file.
class AtomicFile {
 public:
  /// `who` stands in brackets before every error.
  explicit AtomicFile(const std::filesystem::path& target, const char* who = "checkpoint::save");
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  /// Sets the room for `size` bytes aside, so that a full disk is found before the first of them;
  /// file systems that cannot do so are found full later.
  void reserve(uint64_t size);
  /// Appends; a signal in between is harmless.
  void write(const void* data, size_t size);
  /// Bytes written so far.
  uint64_t size() const { return size_; }
  /// commit() gives the file this name in the same folder too, before it takes `target`: a hard
  /// link, or a copy where the file system has no links. What has that name is replaced.
  void add_name(std::filesystem::path name) { names_.push_back(std::move(name)); }
  /// Sends all to the disk, renames, and sends the folder's entries to the disk too.
  void commit();

 private:
  [[noreturn]] void fail(const std::string& action, int error) const;
  void open_partial();
  void take_mode_of_target() const;
  void start_write_back();
  void give_name(const std::filesystem::path& name) const;
  void copy_to(const std::filesystem::path& name) const;
  void sync_folder() const;

  const char* who_;
  std::filesystem::path asked_;    // as the caller wrote it, for messages
  std::filesystem::path target_;   // with symbolic links followed
  std::filesystem::path partial_;  // target_ + ".partial"
  std::vector<std::filesystem::path> names_;
  int descriptor_ = -1;
  uint64_t size_ = 0;
  uint64_t sent_ = 0;  // bytes whose way to the disk has begun
  bool is_committed_ = false;
};

}  // namespace torchamp::checkpoint
