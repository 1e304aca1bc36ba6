#include "torchamp/checkpoint/checkpoint.h"

#include <string>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include "torchamp/checkpoint/atomic_file.h"
#include "torchamp/checkpoint/pickler.h"
#include "torchamp/checkpoint/zip_writer.h"

namespace torchamp::checkpoint {
namespace {

using base::CheckpointError;

// LibTorch's own text for a c10::Error, without the backtrace.
std::string first_line(const c10::Error& error) {
  const std::string text = error.what_without_backtrace();
  return text.substr(0, text.find('\n'));
}

void add_storage(ZipWriter& writer, const std::string& name, const at::Storage& storage) {
  if (storage.device().is_cpu()) {
    writer.add(name, storage.data(), storage.nbytes());
    return;
  }
  const auto num_bytes = static_cast<int64_t>(storage.nbytes());
  at::Tensor bytes = at::empty({0}, at::TensorOptions().dtype(at::kByte).device(storage.device()));
  bytes.set_(storage, 0, {num_bytes}, {1});
  bytes = bytes.to(at::kCPU);
  writer.add(name, bytes.const_data_ptr(), storage.nbytes());
}

}  // namespace

void save(const std::filesystem::path& path, const base::StateDict& dict) {
  const Pickled pickled = pickle(dict);  // first: what cannot be written touches no file
  AtomicFile file(path);
  ZipWriter writer(file, path.stem().string());
  writer.add("data.pkl", pickled.bytes);
  writer.add(".format_version", "1");
  writer.add(".storage_alignment", "64");
  writer.add("byteorder", "little");
  try {
    for (size_t i = 0; i < pickled.storages.size(); ++i) {
      add_storage(writer, "data/" + std::to_string(i), pickled.storages[i]);
    }
  } catch (const c10::Error& error) {
    throw CheckpointError(
        "[checkpoint::save] '" + path.string() +
        "' was not written: a tensor could not be copied to the CPU: " + first_line(error));
  }
  writer.add("version", "3\n");  // of the archive, as PyTorch counts it
  writer.finish();
  file.commit();
}

void check_can_save(const std::filesystem::path& path) {
  const AtomicFile unwritten(path);  // goes away again, as it is not committed
}

}  // namespace torchamp::checkpoint
