#include "torchamp/checkpoint/zip_writer.h"

#include <algorithm>
#include <utility>

#include "torchamp/checkpoint/crc32.h"
#include "torchamp/checkpoint/zip_format.h"

namespace torchamp::checkpoint {
namespace {

constexpr uint64_t kAlignment = 64;

// Little-endian fields, appended one after another.
class Fields {
 public:
  Fields& u16(uint64_t value) { return put(value, 2); }
  Fields& u32(uint64_t value) { return put(value, 4); }
  Fields& u64(uint64_t value) { return put(value, 8); }
  Fields& text(std::string_view value) {
    bytes_.append(value);
    return *this;
  }
  const std::string& bytes() const { return bytes_; }

 private:
  Fields& put(uint64_t value, int count) {
    for (int i = 0; i < count; ++i) bytes_.push_back(static_cast<char>((value >> (8 * i)) & 0xFFU));
    return *this;
  }
  std::string bytes_;
};

// The part of a header's extra field that holds what does not fit in 32 bits.
std::string zip64_extra(std::initializer_list<uint64_t> values) {
  Fields large;
  for (const uint64_t value : values) {
    if (value >= zip::kMax32) large.u64(value);
  }
  if (large.bytes().empty()) return {};
  return Fields().u16(zip::kExtraZip64).u16(large.bytes().size()).text(large.bytes()).bytes();
}

uint64_t field32(uint64_t value) { return std::min<uint64_t>(value, zip::kMax32); }

}  // namespace

ZipWriter::ZipWriter(AtomicFile& file, std::string top) : file_(file), top_(std::move(top)) {}

void ZipWriter::add(std::string_view name, const void* data, size_t size) {
  Record record{top_ + "/" + std::string(name), file_.size(), size, 0};

  // 1. Local header, padded so that the data starts at a multiple of 64.
  std::string extra = zip64_extra({record.size, record.size});
  const uint64_t unpadded =
      record.offset + zip::kLocalHeaderBytes + record.name.size() + extra.size() + 4;
  const uint64_t padding = (kAlignment - unpadded % kAlignment) % kAlignment;
  extra += Fields().u16(zip::kExtraPadding).u16(padding).text(std::string(padding, 'Z')).bytes();
  const bool is_large = record.size >= zip::kMax32;
  const Fields header = Fields()
                            .u32(zip::kLocalHeader)
                            .u16(0)  // version needed, as PyTorch leaves it
                            .u16(zip::kFlagDescriptor | zip::kFlagUtf8)
                            .u16(0)  // stored
                            .u32(0)  // time and date: equal states give equal files
                            .u32(0)  // checksum: in the descriptor
                            .u32(is_large ? zip::kMax32 : 0)
                            .u32(is_large ? zip::kMax32 : 0)
                            .u16(record.name.size())
                            .u16(extra.size())
                            .text(record.name)
                            .text(extra);
  file_.write(header.bytes().data(), header.bytes().size());

  // 2. The data, checksummed while it is in cache.
  constexpr size_t kChunk = size_t{1} << 20;  // half of a common L2
  const char* next = static_cast<const char*>(data);
  for (size_t left = size; left > 0;) {
    const size_t count = std::min(left, kChunk);
    record.crc = crc32(record.crc, next, count);
    file_.write(next, count);
    next += count;
    left -= count;
  }

  // 3. Checksum and sizes.
  Fields descriptor;
  descriptor.u32(zip::kDataDescriptor).u32(record.crc);
  if (is_large) {
    descriptor.u64(record.size).u64(record.size);
  } else {
    descriptor.u32(record.size).u32(record.size);
  }
  file_.write(descriptor.bytes().data(), descriptor.bytes().size());
  records_.push_back(std::move(record));
}

void ZipWriter::finish() {
  const uint64_t start = file_.size();
  std::string directory;
  for (const Record& record : records_) {
    const std::string extra = zip64_extra({record.size, record.size, record.offset});
    directory += Fields()
                     .u32(zip::kCentralHeader)
                     .u16(0)  // made by
                     .u16(0)  // version needed
                     .u16(zip::kFlagDescriptor | zip::kFlagUtf8)
                     .u16(0)  // stored
                     .u32(0)  // time and date
                     .u32(record.crc)
                     .u32(field32(record.size))
                     .u32(field32(record.size))
                     .u16(record.name.size())
                     .u16(extra.size())
                     .u16(0)  // comment
                     .u16(0)  // disk
                     .u16(0)  // internal attributes
                     .u32(0)  // external attributes
                     .u32(field32(record.offset))
                     .text(record.name)
                     .text(extra)
                     .bytes();
  }
  const uint64_t count = records_.size();
  directory += Fields()
                   .u32(zip::kEnd64)
                   .u64(zip::kEnd64Bytes - 12)
                   .u16(0x031E)  // made by: Unix, version 3.0, as PyTorch writes
                   .u16(0x002D)  // version 4.5: zip64
                   .u32(0)
                   .u32(0)
                   .u64(count)
                   .u64(count)
                   .u64(directory.size())
                   .u64(start)
                   .u32(zip::kEnd64Locator)
                   .u32(0)
                   .u64(start + directory.size())
                   .u32(1)
                   .u32(zip::kEnd)
                   .u16(0)
                   .u16(0)
                   .u16(std::min<uint64_t>(count, zip::kMax16))
                   .u16(std::min<uint64_t>(count, zip::kMax16))
                   .u32(field32(directory.size()))
                   .u32(field32(start))
                   .u16(0)
                   .bytes();
  file_.write(directory.data(), directory.size());
}

}  // namespace torchamp::checkpoint
