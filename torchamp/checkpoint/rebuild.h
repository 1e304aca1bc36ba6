#pragma once
// Gives the nodes of a pickle their meaning: dicts, numbers, and tensors over the archive's
// storages.

#include "torchamp/base/state_dict.h"
#include "torchamp/checkpoint/unpickler.h"
#include "torchamp/checkpoint/zip_reader.h"

namespace torchamp::checkpoint {

/// The value that `root` stands for, with tensors read from `archive`.
///
/// FormatError names the entry by its path of keys when it is of a kind that a StateDict does not
/// hold, or a tensor that does not fit its storage. `pickle_size` bounds the result: a small pickle
/// that repeats itself into a huge tree is refused.
base::Value rebuild(const Node& root, const ZipReader& archive, size_t pickle_size);

}  // namespace torchamp::checkpoint
