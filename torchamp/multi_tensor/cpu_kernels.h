#pragma once
// Which CPU kernels this build has, which of them run here, and which one is used.

#include <optional>
#include <string>
#include <vector>

#include "torchamp/base/export.h"

namespace torchamp::multi_tensor {

/// The kernels for one instruction set. All compute the same bits.
struct CpuKernels {
  std::string name;        ///< "scalar", "avx2", "avx512"
  bool runs_here = false;  ///< whether this CPU and its system have the instructions
  bool in_use = false;
};

/// All kernels of this build, the plainest first. In use are those that the environment variable
/// TORCHAMP_CPU names when the process first asks, else the last that run here.
TORCHAMP_API std::vector<CpuKernels> list_cpu_kernels();

/// What is wrong with TORCHAMP_CPU, as a sentence, when it names no kernels that run here. Whatever
/// needs the kernels fails with it.
TORCHAMP_API std::optional<std::string> cpu_kernels_error();

}  // namespace torchamp::multi_tensor
