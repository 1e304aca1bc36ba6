#pragma once
// Which parameters of a module an autocast region casts, by the kind of module. Internal.

#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace torchamp::optim::detail {

/// Names of the parameters that belong to `module` itself and that its forward hands to ops which
/// cast all of their floating arguments, so that a 16-bit value does instead. Of LibTorch's modules
/// and classes derived from them; empty for others, whose forward nobody can look into.
std::vector<std::string> cast_parameters(const torch::nn::Module& module);

}  // namespace torchamp::optim::detail
