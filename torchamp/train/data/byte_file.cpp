#include "torchamp/train/data/byte_file.h"

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include <zlib.h>

#include "torchamp/base/error.h"

namespace torchamp::train {
namespace {

gzFile as_gz(void* file) { return static_cast<gzFile>(file); }

}  // namespace

ByteFile::ByteFile(std::string who, std::filesystem::path path)
    : who_(std::move(who)), path_(std::move(path)) {
  const std::string start = "[" + who_ + "] '" + path_.string() + "' ";
  std::error_code error;
  if (!std::filesystem::is_regular_file(path_, error)) {
    throw base::DataError(start + (std::filesystem::exists(path_, error)
                                       ? "is not a regular file; a data file is expected there."
                                       : "does not exist; a data file is expected there."));
  }
  file_size_ = std::filesystem::file_size(path_, error);
  if (!error) {
    errno = 0;
    file_ = gzopen(path_.c_str(), "rb");
    if (file_ == nullptr) error.assign(errno != 0 ? errno : ENOMEM, std::generic_category());
  }
  if (error) {
    throw base::DataError(start + "cannot be opened (" + error.message() +
                          "); is it readable by this user?");
  }
  gzbuffer(as_gz(file_), 1U << 17);  // zlib's advice for throughput: 128 KiB or more
  is_gzip_ = file_size_ > 0 && gzdirect(as_gz(file_)) == 0;
}

ByteFile::~ByteFile() { gzclose(as_gz(file_)); }

void ByteFile::read(void* into, uint64_t size, const std::string& expected) {
  const uint64_t begin = offset_;
  const uint64_t came = read_some(into, size);
  if (came < size) {
    fail(offset_, "ends",
         expected + " (" + std::to_string(size) + " bytes from byte " + std::to_string(begin) +
             " on) is expected. Was the download or the copy cut short?");
  }
}

std::string ByteFile::read_all() {
  constexpr size_t kPiece = 1 << 20;
  std::string bytes;
  if (!is_gzip_) bytes.reserve(file_size_);
  for (;;) {
    const size_t before = bytes.size();
    bytes.resize(before + kPiece);
    const uint64_t came = read_some(bytes.data() + before, kPiece);
    bytes.resize(before + came);
    if (came < kPiece) return bytes;
  }
}

void ByteFile::expect_end(const std::string& expected) {
  char extra = 0;
  const uint64_t end = offset_;
  if (read_some(&extra, 1) != 0) {
    fail(end, "goes on",
         expected + " is expected to end there. Is its header damaged, or is it another format?");
  }
}

uint64_t ByteFile::max_remaining() const {
  constexpr uint64_t kBestRatio = 1032;  // 258 bytes from 2 bits; zlib's technical notes
  if (!is_gzip_) return file_size_ - std::min(offset_, file_size_);
  return (file_size_ + 1) * kBestRatio;
}

void ByteFile::fail(uint64_t byte, const std::string& came, const std::string& accepted) const {
  throw base::DataError("[" + who_ + "] '" + path_.string() + "' " + came + " at byte " +
                        std::to_string(byte) + (is_gzip_ ? " of its decompressed contents" : "") +
                        "; " + accepted);
}

uint64_t ByteFile::read_some(void* into, uint64_t size) {
  constexpr uint64_t kMost = 1U << 30;  // gzread counts in int
  uint64_t done = 0;
  while (done < size) {
    const auto piece = static_cast<unsigned>(std::min(size - done, kMost));
    const int came = gzread(as_gz(file_), static_cast<char*>(into) + done, piece);
    if (came > 0) {
      done += static_cast<uint64_t>(came);
      offset_ += static_cast<uint64_t>(came);
    }
    if (came == static_cast<int>(piece)) continue;
    // A short read is the end of the file, or damage that gzerror() names.
    int code = Z_OK;
    const std::string reason = gzerror(as_gz(file_), &code);
    if (code == Z_OK || code == Z_STREAM_END) break;
    if (code == Z_BUF_ERROR) {
      fail(offset_, "is gzip that is cut short",
           "the end of a " + std::to_string(file_size_) +
               " byte file is no end of a gzip stream. Was the download interrupted?");
    }
    if (code == Z_ERRNO) {
      fail(offset_, "cannot be read",
           "the system says: " + std::generic_category().message(errno) + ".");
    }
    fail(offset_, "is damaged gzip",
         "compressed byte " + std::to_string(gzoffset(as_gz(file_))) +
             " or one before it is wrong (zlib: " + reason.substr(reason.rfind(": ") + 2) +
             "). Was the download damaged?");
  }
  return done;
}

}  // namespace torchamp::train
