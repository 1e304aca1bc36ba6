#pragma once
// The state of the default random generators, so that a resumed run draws the same numbers.

#include "torchamp/base/export.h"
#include "torchamp/base/loading.h"
#include "torchamp/base/state_dict.h"

namespace torchamp::train {

/// {'cpu': uint8 tensor, 'cuda': [uint8 tensor a device]} of the default generators.
///
/// The tensors are those of Python's torch.get_rng_state() and torch.cuda.get_rng_state_all(), and
/// its set functions accept them. 'cuda' is an empty list where LibTorch sees no CUDA device.
TORCHAMP_API base::StateDict rng_state_dict();

/// Sets the default generators; what they draw next is bit for bit what would have come then.
///
/// A CUDA device that one side does not have is left out: nothing can be drawn for it.
///
/// Errors:  CheckpointError when a state is not one of this kind of generator; all generators are
///          unchanged.
TORCHAMP_API void load_rng_state_dict(const base::StateDict& dict);
/// The first half of it: compares, and changes nothing.
TORCHAMP_API base::Loading prepare_rng_state_dict(const base::StateDict& dict);

}  // namespace torchamp::train
