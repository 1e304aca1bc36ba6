#include "torchamp/checkpoint/zip_reader.h"

#include <algorithm>
#include <string_view>
#include <utility>

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

ZipReader::ZipReader(const InputFile& file) : file_(file) {
  const Directory directory = find_directory();
  read_directory(directory);
  forbid_overlap(directory.offset);
}

ZipReader::Directory ZipReader::find_directory() const {
  // The archive ends with a record of 22 bytes and a comment, which PyTorch leaves empty.
  const uint64_t tail_size = std::min<uint64_t>(file_.size(), zip::kEndBytes + zip::kMax16);
  const uint64_t tail_offset = file_.size() - tail_size;
  const std::string tail = file_.read_at(tail_offset, tail_size);
  size_t at = std::string::npos;
  for (size_t i = tail.size() < zip::kEndBytes ? 0 : tail.size() - zip::kEndBytes + 1; i-- > 0;) {
    if (u32(tail, i) == zip::kEnd && i + zip::kEndBytes + u16(tail, i + 20) == tail.size()) {
      at = i;
      break;
    }
  }
  if (at == std::string::npos) {
    throw FormatError("the archive's directory is missing at the end of " +
                      std::to_string(file_.size()) + " bytes; a whole file ends with one." +
                      kDamaged);
  }
  Directory found{u32(tail, at + 16), u32(tail, at + 12), u16(tail, at + 10)};
  uint64_t directory_limit = tail_offset + at;
  if (directory_limit >= zip::kEnd64LocatorBytes + zip::kEnd64Bytes) {
    const std::string locator =
        file_.read_at(directory_limit - zip::kEnd64LocatorBytes, zip::kEnd64LocatorBytes);
    if (u32(locator, 0) == zip::kEnd64Locator) {
      const uint64_t end64_offset = u64(locator, 8);
      if (end64_offset > directory_limit - zip::kEnd64LocatorBytes - zip::kEnd64Bytes) {
        throw FormatError("the zip64 directory's place, " + byte_text(end64_offset) +
                          ", lies outside the file; it is expected before its end." + kDamaged);
      }
      const std::string end64 = file_.read_at(end64_offset, zip::kEnd64Bytes);
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
  const std::string bytes = file_.read_at(directory.offset, directory.size);
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

std::vector<std::string> ZipReader::names() const {
  std::vector<std::string> result;
  result.reserve(records_.size());
  for (const auto& [name, record] : records_) result.push_back(name);
  return result;
}

Extent ZipReader::locate(const std::string& name) const {
  const Record& found = record(name);
  if (!found.is_stored) {
    throw FormatError("record '" + base::printable(name) +
                      "' of the archive is compressed or encrypted; " +
                      "records stored as torch.save writes them are expected. Was the archive " +
                      "packed again by another program?");
  }
  const std::string expected_name = top_ + "/" + name;
  const std::string header = file_.read_at(
      found.offset, std::min<uint64_t>(found.limit - found.offset,
                                       zip::kLocalHeaderBytes + expected_name.size()));
  const uint64_t header_size =
      zip::kLocalHeaderBytes + u16(header, 26) + u16(header, 28);  // name, extra
  if (u32(header, 0) != zip::kLocalHeader || u16(header, 8) != 0 ||
      header_size > found.limit - found.offset - found.size) {
    throw FormatError("record '" + base::printable(name) + "' does not start at " +
                      byte_text(found.offset) + ", where the archive says it does." + kDamaged);
  }
  if (u16(header, 26) != expected_name.size() ||
      header.compare(zip::kLocalHeaderBytes, std::string::npos, expected_name) != 0) {
    throw FormatError("record '" + base::printable(name) + "' is not the one at " +
                      byte_text(found.offset) + ", where the archive says it is." + kDamaged);
  }
  Extent extent{
      "record '" + base::printable(name) + "'", found.offset + header_size, found.size, {}};
  // 0: PyTorch writes no checksum after torch.serialization.set_crc32_options(False).
  if (found.crc != 0) extent.crc = found.crc;
  return extent;
}

std::string ZipReader::read(const std::string& name) const {
  const Extent extent = locate(name);
  std::string bytes = file_.read_at(extent.offset, extent.size);
  if (extent.crc && crc32(0, bytes.data(), bytes.size()) != *extent.crc) {
    throw FormatError(extent.name + " (" + std::to_string(extent.size) + " bytes from " +
                      byte_text(extent.offset) + ") does not have the checksum written with it." +
                      kDamaged);
  }
  return bytes;
}

}  // namespace torchamp::checkpoint
