#include "torchamp/checkpoint/host_copy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <new>
#include <string>
#include <unordered_map>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include "torchamp/base/error.h"
#include "torchamp/checkpoint/few_threads.h"

namespace torchamp::checkpoint {
namespace {

at::Tensor bytes_on(c10::Device device, int64_t size) {
  return at::empty({size}, at::TensorOptions().dtype(at::kByte).device(device));
}

// Part of a copy from CPU memory that is still to be made.
struct Piece {
  char* to;
  const char* from;
  size_t size;
};
// Long enough that a thread's start does not matter.
constexpr size_t kPieceBytes = size_t{8} << 20;

// A copy in CPU memory: whole where the storage is on another device, else what `pieces` then says.
at::Storage begin_copy(const at::Storage& storage, std::vector<Piece>& pieces) {
  const auto num_bytes = static_cast<int64_t>(storage.nbytes());
  if (!storage.device().is_cpu()) {
    at::Tensor bytes = bytes_on(storage.device(), 0);
    bytes.set_(storage, 0, {num_bytes}, {1});
    return bytes.to(at::kCPU).storage();
  }
  const at::Tensor made = bytes_on(at::kCPU, num_bytes);
  auto* to = static_cast<char*>(made.mutable_data_ptr());
  const auto* from = static_cast<const char*>(storage.data());
  for (size_t done = 0; done < storage.nbytes(); done += kPieceBytes) {
    pieces.push_back({to + done, from + done, std::min(kPieceBytes, storage.nbytes() - done)});
  }
  return made.storage();
}

void copy(const std::vector<Piece>& pieces) {
  size_t total = 0;
  for (const Piece& piece : pieces) total += piece.size;
  in_few_threads(pieces.size(), total / kPieceBytes,
                 [&](size_t i) { std::memcpy(pieces[i].to, pieces[i].from, pieces[i].size); });
}

// Whether the memory goes away with the storage alone. Memory that came from elsewhere (from_blob,
// a mapped file, copy on write) has a context of its own.
bool owns_its_memory(const at::Storage& storage) {
  const at::DataPtr& data = storage.data_ptr();
  return storage.nbytes() == 0 || (data.get() != nullptr && data.get_context() == data.get());
}

at::Storage begin_copy(const at::Storage& storage, std::vector<Piece>& pieces,
                       const std::filesystem::path& path) {
  const std::string who = "[checkpoint::save] '" + path.string() +
                          "' was not written: a tensor of " + std::to_string(storage.nbytes()) +
                          " bytes could not be copied to the CPU: ";
  try {
    return begin_copy(storage, pieces);
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    throw base::CheckpointError(who + text.substr(0, text.find('\n')));
  } catch (const std::bad_alloc&) {
    throw base::CheckpointError(who + "there is not enough memory for it.");
  }
}

}  // namespace

at::Storage host_copy(const at::Storage& storage, const std::filesystem::path& path) {
  std::vector<Piece> pieces;
  at::Storage result = begin_copy(storage, pieces, path);
  copy(pieces);
  return result;
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
  std::vector<Piece> pieces;
  std::vector<at::Storage> copies = storages;
  for (at::Storage& storage : copies) {
    Storage& it = known.at(storage.unsafeGetStorageImpl());
    if (it.is_ours) continue;
    if (!it.copy) it.copy = begin_copy(storage, pieces, path);
    storage = it.copy;
  }
  copy(pieces);  // from storages that `storages` holds until now
  storages = std::move(copies);
}

}  // namespace torchamp::checkpoint
