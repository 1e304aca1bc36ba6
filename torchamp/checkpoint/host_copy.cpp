#include "torchamp/checkpoint/host_copy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <new>
#include <string>
#include <unordered_map>

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include "torchamp/base/error.h"

namespace torchamp::checkpoint {
namespace {

at::Tensor bytes_on(c10::Device device, int64_t size) {
  return at::empty({size}, at::TensorOptions().dtype(at::kByte).device(device));
}

at::Storage copy(const at::Storage& storage) {
  const auto num_bytes = static_cast<int64_t>(storage.nbytes());
  if (!storage.device().is_cpu()) {
    at::Tensor bytes = bytes_on(storage.device(), 0);
    bytes.set_(storage, 0, {num_bytes}, {1});
    return bytes.to(at::kCPU).storage();
  }
  const at::Tensor made = bytes_on(at::kCPU, num_bytes);
  auto* to = static_cast<char*>(made.mutable_data_ptr());
  const auto* from = static_cast<const char*>(storage.data());
  constexpr int64_t kGrain = int64_t{4}
                             << 20;  // below it a second thread costs more than it copies
  at::parallel_for(0, num_bytes, kGrain, [&](int64_t begin, int64_t end) {
    std::memcpy(to + begin, from + begin, static_cast<size_t>(end - begin));
  });
  return made.storage();
}

// Whether the memory goes away with the storage alone. Memory that came from elsewhere (from_blob,
// a mapped file, copy on write) has a context of its own.
bool owns_its_memory(const at::Storage& storage) {
  const at::DataPtr& data = storage.data_ptr();
  return storage.nbytes() == 0 || (data.get() != nullptr && data.get_context() == data.get());
}

}  // namespace

at::Storage host_copy(const at::Storage& storage, const std::filesystem::path& path) {
  const std::string who = "[checkpoint::save] '" + path.string() +
                          "' was not written: a tensor of " + std::to_string(storage.nbytes()) +
                          " bytes could not be copied to the CPU: ";
  try {
    return copy(storage);
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    throw base::CheckpointError(who + text.substr(0, text.find('\n')));
  } catch (const std::bad_alloc&) {
    throw base::CheckpointError(who + "there is not enough memory for it.");
  }
}

void detach_from_others(std::vector<at::Storage>& storages, const std::filesystem::path& path) {
  struct Storage {
    size_t uses = 0;  // in `storages`
    bool is_ours = false;
    at::Storage copy;
  };
  std::unordered_map<const void*, Storage> known;
  for (const at::Storage& storage : storages) ++known[storage.unsafeGetStorageImpl()].uses;
  for (const at::Storage& storage : storages) {
    Storage& it = known.at(storage.unsafeGetStorageImpl());
    it.is_ours =
        storage.device().is_cpu() && owns_its_memory(storage) && storage.use_count() == it.uses;
  }
  for (at::Storage& storage : storages) {
    Storage& it = known.at(storage.unsafeGetStorageImpl());
    if (it.is_ours) continue;
    if (!it.copy) it.copy = host_copy(storage, path);
    storage = it.copy;
  }
}

}  // namespace torchamp::checkpoint
