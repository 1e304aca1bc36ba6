#pragma once
// The order in which a module's weights lie in memory.

#include "torchamp/base/export.h"

namespace torch::nn {
class Module;
}

namespace torchamp::train {

/// Puts the values of every 4-D parameter of `module` into channels_last order, the one that
/// convolutions run faster in on most machines. The parameters stay the same tensors.
TORCHAMP_API void to_channels_last(torch::nn::Module& module);

}  // namespace torchamp::train
