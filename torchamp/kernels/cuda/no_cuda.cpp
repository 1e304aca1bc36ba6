// The CUDA kernels of a build without them.

#include "torchamp/kernels/cuda/step.h"

namespace torchamp::kernels::cuda {

const Kernels& kernels() {
  static constexpr Kernels kAbsent{
      .why_absent =
          "this TorchAmp was built without its CUDA kernels; configure it with "
          "-DTORCHAMP_CUDA=ON where a CUDA toolkit (nvcc) is installed"};
  return kAbsent;
}

}  // namespace torchamp::kernels::cuda
