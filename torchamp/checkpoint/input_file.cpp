#include "torchamp/checkpoint/input_file.h"

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "torchamp/base/error.h"

namespace torchamp::checkpoint {
namespace {

std::string reason_of(int error) { return '"' + std::generic_category().message(error) + '"'; }

}  // namespace

void InputFile::fail(const std::string& reason) const {
  throw base::CheckpointError("[" + who_ + "] '" + path_.string() + "' " + reason);
}

InputFile::InputFile(const std::filesystem::path& path, std::string who)
    : path_(path),
      who_(std::move(who)),
      descriptor_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
  if (descriptor_ < 0 && errno == ENOENT) {
    fail("does not exist; a checkpoint file is expected. Is the path right?");
  } else if (descriptor_ < 0) {
    fail("cannot be opened: " + reason_of(errno) +
         "; a readable checkpoint file is expected. May this user read it?");
  }
  try {
    struct stat status {};
    if (::fstat(descriptor_, &status) != 0) fail("cannot be examined: " + reason_of(errno) + ".");
    if (!S_ISREG(status.st_mode)) {
      fail(std::string("is a ") + (S_ISDIR(status.st_mode) ? "folder" : "device or pipe") +
           "; a checkpoint file is expected. Is the file's name missing at the end?");
    }
    size_ = static_cast<uint64_t>(status.st_size);
  } catch (...) {
    ::close(descriptor_);
    throw;
  }
}

InputFile::~InputFile() { ::close(descriptor_); }

void InputFile::read_at(uint64_t offset, void* destination, size_t size) const {
  char* next = static_cast<char*>(destination);
  while (size > 0) {
    constexpr size_t kMost = size_t{1} << 30;  // Linux reads at most 2 GiB a call
    const ssize_t count =
        ::pread(descriptor_, next, std::min(size, kMost), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      fail("cannot be read at byte " + std::to_string(offset) + ": " + reason_of(errno) +
           "; a whole file is expected. Is the disk failing or gone?");
    }
    if (count == 0) {
      throw FormatError("the file ends at byte " + std::to_string(offset) + "; " +
                        std::to_string(size) +
                        " more bytes are expected. Was the file truncated or damaged?");
    }
    next += count;
    offset += static_cast<uint64_t>(count);
    size -= static_cast<size_t>(count);
  }
}

std::string InputFile::read_at(uint64_t offset, size_t size) const {
  std::string bytes(size, '\0');
  read_at(offset, bytes.data(), size);
  return bytes;
}

std::shared_ptr<char> InputFile::map() {
  if (map_ == nullptr) {
    // No swap is set aside: only pages that are written to become this process's own.
    void* address =
        ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, descriptor_, 0);
    if (address == MAP_FAILED) {
      fail("cannot be mapped: " + reason_of(errno) +
           "; a file system that allows it is expected. Load it without mmap.");
    }
    map_ = std::shared_ptr<char>(static_cast<char*>(address),
                                 [size = size_](char* start) { ::munmap(start, size); });
  }
  return map_;
}

}  // namespace torchamp::checkpoint
