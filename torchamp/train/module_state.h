#pragma once
// The weights and buffers of a module, by the names that Python gives them. Knows nothing of files.

#include <torch/nn/module.h>

#include "torchamp/base/export.h"
#include "torchamp/base/state_dict.h"

namespace torchamp::train {

/// Parameters and buffers of `module` and its children, as Python's module.state_dict() names and
/// orders them ("layer1.0.bn1.num_batches_tracked").
///
/// C++ modules know no non-persistent buffers: every registered buffer is in it. Tensors are those
/// of the module, not copies: save them before the next step, or clone. A 16-bit weight that has a
/// master (optim::to_low_precision) is there as its exact float32 value, a copy, so that a
/// checkpoint does not depend on how the run kept its weights.
///
/// Source:  PyTorch torch/nn/modules/module.py, `state_dict`.
TORCHAMP_API base::StateDict module_state_dict(const torch::nn::Module& module);

/// Copies the values of `dict` into the parameters, their masters and the buffers of `module`,
/// which keep their place in memory, dtype and device, so that optimizers stay attached.
///
/// All or nothing. Floating dtypes are converted into each other.
///
/// Errors:  CheckpointError listing every missing, unexpected, mis-shaped or mis-typed entry; the
///          module is unchanged.
TORCHAMP_API void load_module_state_dict(torch::nn::Module& module, const base::StateDict& dict);

}  // namespace torchamp::train
