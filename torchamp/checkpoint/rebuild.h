#pragma once
// Gives the nodes of a pickle their meaning: dicts, numbers, and tensors over the file's storages.

#include "torchamp/base/state_dict.h"
#include "torchamp/checkpoint/tensor_builder.h"
#include "torchamp/checkpoint/unpickler.h"

namespace torchamp::checkpoint {

/// The value that `root` stands for; its tensors hold their data after storages.reader.finish().
///
/// FormatError names the entry by its path of keys when it is of a kind that a StateDict does not
/// hold, or a tensor that does not fit its storage. `pickle_size` bounds the result: a small pickle
/// that repeats itself into a huge tree is refused.
base::Value rebuild(const Node& root, size_t pickle_size, const Storages& storages);

/// As rebuild(), of a root that is a dict; FormatError naming the type of any other.
base::StateDict rebuild_dict(const Node& root, size_t pickle_size, const Storages& storages);

}  // namespace torchamp::checkpoint
