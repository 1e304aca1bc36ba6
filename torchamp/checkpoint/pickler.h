#pragma once
// The pickle that torch.save would write for a StateDict, byte for byte, and the storages it refers
// to.

#include <string>
#include <vector>

#include <c10/core/Storage.h>

#include "torchamp/base/state_dict.h"

namespace torchamp::checkpoint {

/// data.pkl, and storage i for record data/<i>.
struct Pickled {
  std::string bytes;
  std::vector<at::Storage> storages;
};

/// Pickles `dict` by protocol 2. CheckpointError naming the entry that a .pt file cannot hold.
Pickled pickle(const base::StateDict& dict);

}  // namespace torchamp::checkpoint
