#include "torchamp/checkpoint/archive_writer.h"

#include <cstdint>
#include <string>
#include <utility>

#include <c10/core/Storage.h>

#include "torchamp/checkpoint/host_copy.h"
#include "torchamp/checkpoint/zip_writer.h"

namespace torchamp::checkpoint {

void write_archive(Pickled pickled, const std::filesystem::path& path, AtomicFile& file) {
  uint64_t size = pickled.bytes.size();
  for (const at::Storage& storage : pickled.storages) size += storage.nbytes();
  file.reserve(size);
  ZipWriter writer(file, path.stem().string());
  writer.add("data.pkl", pickled.bytes);
  writer.add(".format_version", "1");
  writer.add(".storage_alignment", "64");
  writer.add("byteorder", "little");
  for (size_t i = 0; i < pickled.storages.size(); ++i) {
    at::Storage storage = std::move(pickled.storages[i]);
    if (!storage.device().is_cpu()) storage = host_copy(storage, path);
    writer.add("data/" + std::to_string(i), storage.data(), storage.nbytes());
  }
  writer.add("version", "3\n");  // of the archive, as PyTorch counts it
  writer.finish();
}

}  // namespace torchamp::checkpoint
