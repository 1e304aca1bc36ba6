// The CUDA kernels of this build.

#include "torchamp/kernels/cuda/launches.cuh"

namespace torchamp::kernels::cuda {

const Kernels& kernels() {
  static constexpr Kernels kKernels = make_kernels();
  return kKernels;
}

}  // namespace torchamp::kernels::cuda
