#pragma once
// Gives the nodes of a pickle their meaning: dicts, numbers, and tensors over the file's storages.

#include <functional>
#include <string>

#include "torchamp/base/state_dict.h"
#include "torchamp/checkpoint/storage_reader.h"
#include "torchamp/checkpoint/unpickler.h"

namespace torchamp::checkpoint {

/// Where the storages of a pickle are: each has a key in it.
struct Storages {
  /// The bytes of a key; FormatError when the file has no such storage.
  std::function<Extent(const std::string& key)> find;
  StorageReader& reader;
};

/// The value that `root` stands for; its tensors hold their data after storages.reader.finish().
///
/// FormatError names the entry by its path of keys when it is of a kind that a StateDict does not
/// hold, or a tensor that does not fit its storage. `pickle_size` bounds the result: a small pickle
/// that repeats itself into a huge tree is refused.
base::Value rebuild(const Node& root, size_t pickle_size, const Storages& storages);

}  // namespace torchamp::checkpoint
