// The library's CUDA kernels and launches, compiled for the emulated runtime beside this file.

#include "cuda/emulated/step_kernels.h"

#include "torchamp/kernels/cuda/launches.cuh"

namespace emulated {

const torchamp::kernels::cuda::Kernels& kernels() {
  static constexpr auto kKernels = torchamp::kernels::cuda::make_kernels();
  return kKernels;
}

bool has_error() { return last_error != cudaSuccess; }

}  // namespace emulated
