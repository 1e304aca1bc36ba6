#include "torchamp/checkpoint/zip_reader.h"

#include <algorithm>
#include <cerrno>
#include <string_view>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "torchamp/base/error.h"
#include "torchamp/base/state_dict.h"
#include "torchamp/checkpoint/crc32.h"
#include "torchamp/checkpoint/format_error.h"
#include "torchamp/checkpoint/zip_format.h"

namespace torchamp::checkpoint {
namespace {

constexpr const char* kDamaged = " Was the file truncated or damaged?";

uint64_t field(std::string_view bytes, size_t offset, size_t count) {
  uint64_t value = 0;
  for (size_t i = 0; i < count; ++i) {
    value |= uint64_t{static_cast<unsigned char>(bytes[offset + i])} << (8 * i);
  }
  return value;
}
uint16_t u16(std::string_view bytes, size_t offset) {
  return static_cast<uint16_t>(field(bytes, offset, 2));
}
uint32_t u32(std::string_view bytes, size_t offset) {
  return static_cast<uint32_t>(field(bytes, offset, 4));
}
uint64_t u64(std::string_view bytes, size_t offset) { return field(bytes, offset, 8); }

bool starts_with(std::string_view bytes, std::string_view start) {
  return bytes.substr(0, start.size()) == start;
}

std::string byte_text(uint64_t offset) { return "byte " + std::to_string(offset); }

// Replaces each of `values` that says "too large for 32 bits" by its zip64 field.
void apply_zip64(std::string_view extra, std::initializer_list<uint64_t*> values) {
  for (size_t at = 0; at + 4 <= extra.size();) {
    const uint16_t id = u16(extra, at);
    const size_t end = std::min<size_t>(extra.size(), at + 4 + u16(extra, at + 2));
    at += 4;
    if (id == zip::kExtraZip64) {
      for (uint64_t* value : values) {
        if (*value != zip::kMax32 || at + 8 > end) continue;
        *value = u64(extra, at);
        at += 8;
      }
      return;
    }
    at = end;
  }
}

}  // namespace

ZipReader::ZipReader(const std::filesystem::path& path) : path_(path) {
  const auto fail = [&](const std::string& reason) {
    throw base::CheckpointError("[checkpoint::load] '" + path.string() + "' " + reason);
  };
  descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor_ < 0 && errno == ENOENT) {
    fail("does not exist; a checkpoint file is expected. Is the path right?");
  } else if (descriptor_ < 0) {
    fail("cannot be opened: \"" + std::generic_category().message(errno) +
         "\"; a readable checkpoint file is expected. May this user read it?");
  }
  try {
    struct stat status {};
    if (::fstat(descriptor_, &status) != 0) {
      fail("cannot be examined: \"" + std::generic_category().message(errno) + "\".");
    }
    if (!S_ISREG(status.st_mode)) {
      fail(std::string("is a ") + (S_ISDIR(status.st_mode) ? "folder" : "device or pipe") +
           "; a checkpoint file is expected. Is the file's name missing at the end?");
    }
    file_size_ = static_cast<uint64_t>(status.st_size);
    refuse_other_formats();
    const Directory directory = find_directory();
    read_directory(directory);
    forbid_overlap(directory.offset);
  } catch (...) {
    ::close(descriptor_);
    throw;
  }
}

ZipReader::~ZipReader() { ::close(descriptor_); }

void ZipReader::read_at(uint64_t offset, void* destination, size_t size) const {
  char* next = static_cast<char*>(destination);
  while (size > 0) {
    constexpr size_t kMost = size_t{1} << 30;  // Linux reads at most 2 GiB a call
    const ssize_t count =
        ::pread(descriptor_, next, std::min(size, kMost), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      throw base::CheckpointError(
          "[checkpoint::load] reading '" + path_.string() + "' failed at " + byte_text(offset) +
          ": \"" + std::generic_category().message(errno) + "\". Is the disk failing or gone?");
    }
    if (count == 0) {
      throw FormatError("the file ends at " + byte_text(offset) + "; " + std::to_string(size) +
                        " more bytes are expected." + kDamaged);
    }
    next += count;
    offset += static_cast<uint64_t>(count);
    size -= static_cast<size_t>(count);
  }
}

void ZipReader::refuse_other_formats() const {
  std::string start(std::min<uint64_t>(file_size_, 64), '\0');
  read_at(0, start.data(), start.size());
  if (start.empty()) {
    throw FormatError("the file is empty; a zip archive is expected." + std::string(kDamaged));
  }
  if (starts_with(start, "PK\x03\x04")) return;
  // torch.save before 1.6 wrote pickles one after another, the first of them this number.
  constexpr std::string_view kLegacyNumber = "\x8a\x0al\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.";
  if (start.size() > 2 && start[0] == '\x80' && starts_with(start.substr(2), kLegacyNumber)) {
    throw FormatError(
        "the file has the format that torch.save wrote before PyTorch 1.6; the zip format is "
        "expected. Load it in Python and torch.save it again.");
  }
  if (start.size() > 9 && start[8] == '{' && (start[9] == '"' || start[9] == '}')) {
    throw FormatError(
        "the file looks like safetensors; a .pt file is expected. Was it written by torch.save?");
  }
  if (starts_with(start, "version https://git-lfs")) {
    throw FormatError(
        "the file is a Git LFS pointer; the checkpoint itself is expected. Was 'git lfs pull' "
        "forgotten?");
  }
  throw FormatError(
      "the file does not start as a zip archive does; a .pt file of torch.save (PyTorch 1.6 or "
      "later) is expected. Is it another kind of file?");
}

ZipReader::Directory ZipReader::find_directory() const {
  // The archive ends with a record of 22 bytes and a comment, which PyTorch leaves empty.
  const uint64_t tail_size = std::min<uint64_t>(file_size_, zip::kEndBytes + zip::kMax16);
  std::string tail(tail_size, '\0');
  const uint64_t tail_offset = file_size_ - tail_size;
  read_at(tail_offset, tail.data(), tail.size());
  size_t at = std::string::npos;
  for (size_t i = tail.size() < zip::kEndBytes ? 0 : tail.size() - zip::kEndBytes + 1; i-- > 0;) {
    if (u32(tail, i) == zip::kEnd && i + zip::kEndBytes + u16(tail, i + 20) == tail.size()) {
      at = i;
      break;
    }
  }
  if (at == std::string::npos) {
    throw FormatError("the archive's directory is missing at the end of " +
                      std::to_string(file_size_) + " bytes; a whole file ends with one." +
                      kDamaged);
  }
  Directory found{u32(tail, at + 16), u32(tail, at + 12), u16(tail, at + 10)};
  uint64_t directory_limit = tail_offset + at;
  if (directory_limit >= zip::kEnd64LocatorBytes + zip::kEnd64Bytes) {
    std::string locator(zip::kEnd64LocatorBytes, '\0');
    read_at(directory_limit - locator.size(), locator.data(), locator.size());
    if (u32(locator, 0) == zip::kEnd64Locator) {
      const uint64_t end64_offset = u64(locator, 8);
      if (end64_offset > directory_limit - zip::kEnd64LocatorBytes - zip::kEnd64Bytes) {
        throw FormatError("the zip64 directory's place, " + byte_text(end64_offset) +
                          ", lies outside the file; it is expected before its end." + kDamaged);
      }
      std::string end64(zip::kEnd64Bytes, '\0');
      read_at(end64_offset, end64.data(), end64.size());
      if (u32(end64, 0) != zip::kEnd64) {
        throw FormatError("there is no zip64 directory at " + byte_text(end64_offset) +
                          ", where the archive says it is." + kDamaged);
      }
      found = {u64(end64, 48), u64(end64, 40), u64(end64, 32)};
      directory_limit = end64_offset;
    }
  }
  if (found.offset > directory_limit || found.size != directory_limit - found.offset) {
    throw FormatError("the archive's directory (" + std::to_string(found.size) + " bytes from " +
                      byte_text(found.offset) + ") does not end at " + byte_text(directory_limit) +
                      ", where it is expected to." + kDamaged);
  }
  if (found.count > found.size / zip::kCentralHeaderBytes) {
    throw FormatError("the archive claims " + std::to_string(found.count) + " records in " +
                      std::to_string(found.size) + " bytes of directory; at least 46 bytes each " +
                      "are expected." + kDamaged);
  }
  return found;
}

void ZipReader::read_directory(const Directory& directory) {
  std::string bytes(directory.size, '\0');
  read_at(directory.offset, bytes.data(), bytes.size());
  const std::string_view view = bytes;
  size_t at = 0;
  for (uint64_t i = 0; i < directory.count; ++i) {
    const std::string where = "directory entry " + std::to_string(i);
    const bool fits = view.size() - at >= zip::kCentralHeaderBytes;
    const size_t name_size = fits ? u16(view, at + 28) : 0;
    const size_t extra_size = fits ? u16(view, at + 30) : 0;
    const size_t entry_size =
        zip::kCentralHeaderBytes + name_size + extra_size + (fits ? u16(view, at + 32) : size_t{0});
    if (!fits || u32(view, at) != zip::kCentralHeader || view.size() - at < entry_size) {
      throw FormatError(where + " of the archive, at " + byte_text(directory.offset + at) +
                        ", is not one; a zip directory entry is expected." + kDamaged);
    }
    const std::string full_name(view.substr(at + zip::kCentralHeaderBytes, name_size));
    const uint16_t flags = u16(view, at + 8);
    uint64_t stored_size = u32(view, at + 20);
    Record record;
    record.crc = u32(view, at + 16);
    record.size = u32(view, at + 24);
    record.offset = u32(view, at + 42);
    apply_zip64(view.substr(at + zip::kCentralHeaderBytes + name_size, extra_size),
                {&record.size, &stored_size, &record.offset});
    record.is_stored =
        u16(view, at + 10) == 0 && (flags & zip::kFlagEncrypted) == 0 && stored_size == record.size;
    if (!record.is_stored) record.size = stored_size;  // what it takes up here
    if (record.offset > directory.offset || record.size > directory.offset - record.offset) {
      throw FormatError("record '" + base::printable(full_name) + "' (" +
                        std::to_string(record.size) + " bytes from " + byte_text(record.offset) +
                        ") reaches past " + byte_text(directory.offset) +
                        ", where the records end." + kDamaged);
    }
    // As PyTorch: everything lies in one folder, named by the first record.
    const size_t slash = full_name.find('/');
    if (i == 0) top_ = full_name.substr(0, slash == std::string::npos ? 0 : slash);
    at += entry_size;
    if (slash == std::string::npos || full_name.compare(0, slash, top_) != 0) continue;
    if (!records_.emplace(full_name.substr(slash + 1), record).second) {
      throw FormatError("record '" + base::printable(full_name) +
                        "' is in the archive twice; one is expected." + kDamaged);
    }
  }
  if (at != view.size()) {
    throw FormatError("the archive's directory holds " + std::to_string(view.size() - at) +
                      " bytes after its last entry; none are expected." + kDamaged);
  }
}

void ZipReader::forbid_overlap(uint64_t directory_offset) {
  // Records that share bytes would let a small file claim any amount of memory.
  std::vector<std::pair<uint64_t, std::map<std::string, Record>::iterator>> by_offset;
  by_offset.reserve(records_.size());
  for (auto it = records_.begin(); it != records_.end(); ++it) {
    by_offset.emplace_back(it->second.offset, it);
  }
  std::sort(by_offset.begin(), by_offset.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  for (size_t i = 0; i < by_offset.size(); ++i) {
    const auto& [name, record] = *by_offset[i].second;
    const uint64_t limit = i + 1 < by_offset.size() ? by_offset[i + 1].first : directory_offset;
    if (limit - record.offset < zip::kLocalHeaderBytes ||
        limit - record.offset - zip::kLocalHeaderBytes < record.size) {
      throw FormatError("record '" + base::printable(name) +
                        "' overlaps what follows it; records lie one after " +
                        "another in a file of torch.save." + kDamaged);
    }
    by_offset[i].second->second.limit = limit;
  }
}

const ZipReader::Record& ZipReader::record(const std::string& name) const {
  const auto it = records_.find(name);
  if (it == records_.end()) {
    throw FormatError("the archive has no record '" + base::printable(name) +
                      "'; torch.save writes one. " + "Is it a zip file of another kind?");
  }
  return it->second;
}

uint64_t ZipReader::size(const std::string& name) const { return record(name).size; }

void ZipReader::read(const std::string& name, void* destination) const {
  const Record& found = record(name);
  if (!found.is_stored) {
    throw FormatError("record '" + base::printable(name) +
                      "' of the archive is compressed or encrypted; " +
                      "records stored as torch.save writes them are expected. Was the archive " +
                      "packed again by another program?");
  }
  std::string header(zip::kLocalHeaderBytes, '\0');
  read_at(found.offset, header.data(), header.size());
  const uint64_t header_size =
      zip::kLocalHeaderBytes + u16(header, 26) + u16(header, 28);  // name, extra
  if (u32(header, 0) != zip::kLocalHeader || u16(header, 8) != 0 ||
      header_size > found.limit - found.offset - found.size) {
    throw FormatError("record '" + base::printable(name) + "' does not start at " +
                      byte_text(found.offset) + ", where the archive says it does." + kDamaged);
  }
  std::string stored_name(u16(header, 26), '\0');
  read_at(found.offset + zip::kLocalHeaderBytes, stored_name.data(), stored_name.size());
  if (stored_name != top_ + "/" + name) {
    throw FormatError("record '" + base::printable(name) + "' is not the one at " +
                      byte_text(found.offset) + ", where the archive says it is." + kDamaged);
  }
  constexpr size_t kChunk = size_t{1} << 20;  // half of a common L2: checksummed while in cache
  char* next = static_cast<char*>(destination);
  uint64_t offset = found.offset + header_size;
  uint32_t crc = 0;
  for (uint64_t left = found.size; left > 0;) {
    const size_t count = std::min<uint64_t>(left, kChunk);
    read_at(offset, next, count);
    crc = crc32(crc, next, count);
    next += count;
    offset += count;
    left -= count;
  }
  // 0: PyTorch writes no checksum after torch.serialization.set_crc32_options(False).
  if (found.crc != 0 && crc != found.crc) {
    throw FormatError("record '" + base::printable(name) + "' (" + std::to_string(found.size) +
                      " bytes from " + byte_text(found.offset + header_size) +
                      ") does not have the checksum written with it." + kDamaged);
  }
}

std::string ZipReader::read(const std::string& name) const {
  std::string bytes(size(name), '\0');
  read(name, bytes.data());
  return bytes;
}

}  // namespace torchamp::checkpoint
