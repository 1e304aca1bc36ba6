#include "torchamp/checkpoint/atomic_file.h"

#include <algorithm>
#include <cerrno>
#include <memory>
#include <system_error>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "torchamp/base/error.h"

namespace torchamp::checkpoint {
namespace {

namespace fs = std::filesystem;

// Repeats `call` while signals interrupt it.
template <typename Call>
auto retry(Call call) {
  decltype(call()) result;
  do {
    result = call();
  } while (result < 0 && errno == EINTR);
  return result;
}

fs::path folder_of(const fs::path& file) {
  return file.has_parent_path() ? file.parent_path() : fs::path(".");
}

fs::path partial_of(const fs::path& file) {
  fs::path partial = file;
  partial += ".partial";
  return partial;
}

// What link() says where the file system or the rules for this file know no hard links.
bool has_no_links(int error) {
  return error == EPERM || error == EOPNOTSUPP || error == ENOSYS || error == EMLINK ||
         error == EXDEV;
}

const char* likely_cause(int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT:
      return "Is the disk full?";
    case EFBIG:
      return "Is there a limit on the size of files (ulimit -f)?";
    case ENOENT:
    case ENOTDIR:
      return "Does its folder exist?";
    case EACCES:
    case EPERM:
    case EROFS:
      return "May this user write to its folder?";
    case EIO:
      return "Is the disk failing or gone?";
    default:
      return "Is the place a folder on a local disk?";
  }
}

}  // namespace

fs::path follow_links(const fs::path& path) {
  std::error_code ignored;
  fs::path target = path;
  constexpr int kMostLinks = 40;  // Linux's own limit
  for (int i = 0; i < kMostLinks && fs::is_symlink(target, ignored); ++i) {
    const fs::path link = fs::read_symlink(target, ignored);
    target = link.is_absolute() ? link : folder_of(target) / link;
  }
  return target;
}

AtomicFile::AtomicFile(const fs::path& target, const char* who)
    : who_(who), asked_(target), target_(follow_links(target)) {
  std::error_code ignored;
  const fs::file_status status = fs::status(target_, ignored);
  if (!target_.has_filename() || fs::is_directory(status)) fail("opening it", EISDIR);
  if (fs::exists(status) && !fs::is_regular_file(status)) fail("replacing it", EEXIST);
  partial_ = partial_of(target_);
  open_partial();
  take_mode_of_target();
}

AtomicFile::~AtomicFile() {
  if (descriptor_ < 0) return;
  if (!is_committed_) ::unlink(partial_.c_str());  // before the lock goes with the descriptor
  ::close(descriptor_);
}

void AtomicFile::open_partial() {
  for (;;) {
    const int descriptor = retry([&] {
      return ::open(partial_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    });
    if (descriptor < 0) fail("opening its .partial file", errno);
    descriptor_ = descriptor;
    // The lock makes writers of one target take turns; file systems without locks do without.
    retry([&] { return ::flock(descriptor, LOCK_EX); });
    struct stat opened {};
    struct stat named {};
    const bool is_ours = ::fstat(descriptor, &opened) == 0 &&
                         ::stat(partial_.c_str(), &named) == 0 && opened.st_ino == named.st_ino &&
                         opened.st_dev == named.st_dev;
    const bool has_other_names = opened.st_nlink > 1;
    if (is_ours && !has_other_names) break;
    // A process that was killed between its last names left one whole file under several: this name
    // goes, the file stays.
    if (is_ours && ::unlink(partial_.c_str()) != 0 && errno != ENOENT) {
      fail("removing what an earlier process left of it", errno);
    }
    // Else the writer before us renamed or removed what we opened: open what stands there now.
    descriptor_ = -1;
    ::close(descriptor);
  }
  if (retry([&] { return ::ftruncate(descriptor_, 0); }) < 0) {
    const int error = errno;
    ::unlink(partial_.c_str());
    ::close(descriptor_);
    descriptor_ = -1;
    fail("emptying its .partial file", error);
  }
}

// Best effort: a file system without owners or modes, or a user who may not set them, does without.
void AtomicFile::take_mode_of_target() const {
  struct stat replaced {};
  struct stat made {};
  if (::stat(target_.c_str(), &replaced) != 0 || ::fstat(descriptor_, &made) != 0) return;
  if (replaced.st_uid != made.st_uid || replaced.st_gid != made.st_gid) {
    if (::fchown(descriptor_, replaced.st_uid, replaced.st_gid) != 0) errno = 0;
  }
  ::fchmod(descriptor_, replaced.st_mode & 0777);
}

void AtomicFile::reserve(uint64_t size) {
  // KEEP_SIZE: the file ends where it was written to, whatever happens.
  const int result = retry([&] {
    return ::fallocate(descriptor_, FALLOC_FL_KEEP_SIZE, static_cast<off_t>(size_),
                       static_cast<off_t>(size));
  });
  if (result < 0 && (errno == ENOSPC || errno == EDQUOT || errno == EFBIG)) {
    fail("setting " + std::to_string(size) + " bytes aside", errno);
  }
}

void AtomicFile::write(const void* data, size_t size) {
  const char* next = static_cast<const char*>(data);
  while (size > 0) {
    constexpr size_t kMost = size_t{1} << 30;  // Linux writes at most 2 GiB a call
    const ssize_t written =
        retry([&] { return ::write(descriptor_, next, std::min(size, kMost)); });
    if (written <= 0) fail("writing byte " + std::to_string(size_), written < 0 ? errno : EIO);
    next += written;
    size -= static_cast<size_t>(written);
    size_ += static_cast<uint64_t>(written);
  }
  start_write_back();
}

// The disk works while the rest is written, so that commit() waits for little.
void AtomicFile::start_write_back() {
  constexpr uint64_t kStretch = uint64_t{32} << 20;  // large enough for a disk's full rate
  if (size_ - sent_ < kStretch) return;
  // A hint: what fails here fails again, and is told, in commit().
  ::sync_file_range(descriptor_, static_cast<off_t>(sent_), static_cast<off_t>(size_ - sent_),
                    SYNC_FILE_RANGE_WRITE);
  sent_ = size_;
}

void AtomicFile::commit() {
  if (retry([&] { return ::fsync(descriptor_); }) < 0) fail("sending it to the disk", errno);
  for (const fs::path& name : names_) give_name(name);
  if (::rename(partial_.c_str(), target_.c_str()) < 0) fail("renaming its .partial file", errno);
  is_committed_ = true;
  sync_folder();
}

void AtomicFile::give_name(const fs::path& name) const {
  const fs::path partial = partial_of(name);
  ::unlink(partial.c_str());  // what a killed process left
  if (::link(partial_.c_str(), partial.c_str()) < 0) {
    if (has_no_links(errno)) return copy_to(name);
    fail("linking '" + partial.string() + "'", errno);
  }
  if (::rename(partial.c_str(), name.c_str()) < 0) {
    const int error = errno;
    ::unlink(partial.c_str());
    fail("naming it '" + name.string() + "'", error);
  }
}

void AtomicFile::copy_to(const fs::path& name) const {
  const int source = retry([&] { return ::open(partial_.c_str(), O_RDONLY | O_CLOEXEC); });
  if (source < 0) fail("reading its .partial file", errno);
  const std::unique_ptr<const int, void (*)(const int*)> closes(&source,
                                                                [](const int* d) { ::close(*d); });
  AtomicFile copy(name, who_);
  copy.reserve(size_);
  std::vector<char> buffer(size_t{1} << 20);
  while (copy.size() < size_) {
    const ssize_t count = retry([&] { return ::read(source, buffer.data(), buffer.size()); });
    if (count <= 0) fail("reading its .partial file", count < 0 ? errno : EIO);
    copy.write(buffer.data(), static_cast<size_t>(count));
  }
  copy.commit();
}

void AtomicFile::sync_folder() const {
  const fs::path folder = folder_of(target_);
  const int descriptor =
      retry([&] { return ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); });
  if (descriptor < 0) return;  // a folder that may be written but not read: nothing more to do
  const int result = retry([&] { return ::fsync(descriptor); });
  const int error = errno;
  ::close(descriptor);
  // EINVAL: a file system that has no fsync for folders.
  if (result < 0 && error != EINVAL) fail("sending its folder to the disk", error);
}

void AtomicFile::fail(const std::string& action, int error) const {
  throw base::CheckpointError(
      std::string("[") + who_ + "] '" + asked_.string() + "' was not written: " + action +
      " failed with \"" + std::generic_category().message(error) +
      "\"; a checkpoint that stood there is unchanged. " + likely_cause(error));
}

}  // namespace torchamp::checkpoint
