#include "torchamp/checkpoint/storage_reader.h"

#include <algorithm>
#include <memory>
#include <utility>

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include "torchamp/checkpoint/crc32.h"
#include "torchamp/checkpoint/few_threads.h"
#include "torchamp/checkpoint/format_error.h"

namespace torchamp::checkpoint {
namespace {

// What one thread reads at a time: long enough that its start does not matter, short enough that
// threads end together. Reads go in steps that are checksummed while they are in cache.
constexpr uint64_t kPieceBytes = uint64_t{4} << 20;
constexpr size_t kStepBytes = size_t{256} << 10;

struct Piece {
  size_t job = 0;
  uint64_t start = 0;  // within the extent
  uint64_t size = 0;
  uint32_t crc = 0;
};

}  // namespace

at::Storage StorageReader::storage(const Extent& extent, size_t alignment) {
  const auto size = static_cast<int64_t>(extent.size);
  if (is_mapped_ && extent.offset % alignment == 0) {
    if (is_verified_) check(extent);
    auto owner = std::make_unique<std::shared_ptr<char>>(file_.map());
    char* const start = owner->get() + extent.offset;
    at::DataPtr data(
        start, owner.release(),
        [](void* context) { delete static_cast<std::shared_ptr<char>*>(context); },
        at::Device(at::kCPU));
    return at::Storage(at::Storage::use_byte_size_t(), size, std::move(data), nullptr,
                       /*resizable=*/false);
  }
  // Without MADV_HUGEPAGE: where memory is in small pieces the kernel moves them first, and 1 GB
  // took between 0.12 and 2.3 s instead of 0.45.
  c10::Allocator* allocator = c10::GetCPUAllocator();
  at::Storage result(at::Storage::use_byte_size_t(), size, allocator->allocate(extent.size),
                     allocator, /*resizable=*/true);
  auto* const destination = static_cast<char*>(result.mutable_data());
  jobs_.push_back({extent, destination, result});
  return result;
}

void StorageReader::check(const Extent& extent) {
  if (extent.crc) jobs_.push_back({extent, nullptr, {}});
}

void StorageReader::finish() {
  std::vector<Piece> pieces;
  uint64_t total = 0;
  for (size_t job = 0; job < jobs_.size(); ++job) {
    const uint64_t size = jobs_[job].extent.size;
    total += size;
    for (uint64_t start = 0; start < size; start += kPieceBytes) {
      pieces.push_back({job, start, std::min(kPieceBytes, size - start), 0});
    }
  }

  in_few_threads(pieces.size(), total / kPieceBytes, [&](size_t i) {
    Piece& piece = pieces[i];
    const Job& job = jobs_[piece.job];
    const bool is_compared = is_verified_ && job.extent.crc;
    std::vector<char> scratch(job.destination == nullptr ? kStepBytes : 0);
    for (uint64_t done = 0; done < piece.size;) {
      const size_t step = std::min<uint64_t>(kStepBytes, piece.size - done);
      char* const to =
          job.destination == nullptr ? scratch.data() : job.destination + piece.start + done;
      file_.read_at(job.extent.offset + piece.start + done, to, step);
      if (is_compared) piece.crc = crc32(piece.crc, to, step);
      done += step;
    }
  });

  auto piece = pieces.begin();
  for (size_t job = 0; job < jobs_.size(); ++job) {
    const Extent& extent = jobs_[job].extent;
    uint32_t crc = 0;
    for (; piece != pieces.end() && piece->job == job; ++piece) {
      crc = crc32_combine(crc, piece->crc, piece->size);
    }
    if (is_verified_ && extent.crc && crc != *extent.crc) {
      throw FormatError(extent.name + " (" + std::to_string(extent.size) + " bytes from byte " +
                        std::to_string(extent.offset) +
                        ") does not have the checksum written with it; the bytes that were saved "
                        "are expected. Was the file damaged?");
    }
  }
  jobs_.clear();
}

}  // namespace torchamp::checkpoint
