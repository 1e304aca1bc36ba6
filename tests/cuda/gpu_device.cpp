#include "cuda/device_under_test.h"
#include "torchamp/multi_tensor/cuda_step.h"

namespace device_under_test {

at::Device device() { return at::Device(at::kCUDA, 0); }
std::string why_skipped() {
  if (!torchamp::multi_tensor::has_cuda_step(device())) {
    return "this build has no CUDA kernels (TORCHAMP_CUDA=ON and nvcc are needed)";
  }
  return torch::cuda::is_available() ? "" : "no CUDA device was found here";
}
void take_kernels(bool /*cuda*/) {}
void set_capturing(bool /*capturing*/) {}

}  // namespace device_under_test
