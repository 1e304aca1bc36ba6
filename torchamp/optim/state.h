#pragma once
// The state of LibTorch's optimizers in the layout of Python's optimizer.state_dict(). Knows
// nothing of files.

#include <torch/optim/optimizer.h>

#include "torchamp/base/export.h"
#include "torchamp/base/loading.h"
#include "torchamp/base/state_dict.h"

namespace torchamp::optim {

/// {'state': {index: {...}}, 'param_groups': [{...}]} of an AdamW, Adam or SGD, LibTorch's or ours,
/// as Python's optimizer.state_dict() gives it and its load_state_dict() accepts it.
///
/// Parameters are numbered over the groups in order. `step` is a float32 tensor without dimensions.
/// What the C++ optimizers do not have (foreach, fused, maximize, ...) gets Python's default.
/// LAMB, which Python does not have, is laid out as Adam. Tensors are those of the optimizer, not
/// copies: save them before the next step, or clone; 8-bit moments are given as float32.
///
/// Errors:  CheckpointError when the optimizer is of another type.
/// Source:  PyTorch torch/optim/optimizer.py, `state_dict`; adam.py and sgd.py, `_init_group`.
TORCHAMP_API base::StateDict optimizer_state_dict(const torch::optim::Optimizer& optimizer);

/// Takes over hyperparameters and state from `dict`, from Python or from optimizer_state_dict().
///
/// All or nothing: type of optimizer, groups, parameters and shapes are compared first. Tensors are
/// copied to the device of their parameter and, for floating parameters, to its dtype; an optimizer
/// of torchamp::optim keeps moments in the dtype of its own (FusedOptions). Keys that
/// LibTorch's optimizers do not have are ignored where they do not change the numbers (foreach,
/// fused, capturable, initial_lr).
///
/// Errors:  CheckpointError listing every difference; the optimizer is unchanged.
TORCHAMP_API void load_optimizer_state_dict(torch::optim::Optimizer& optimizer,
                                            const base::StateDict& dict);
/// The first half of it: compares, and changes nothing.
TORCHAMP_API base::Loading prepare_optimizer_state_dict(torch::optim::Optimizer& optimizer,
                                                        const base::StateDict& dict);

}  // namespace torchamp::optim
