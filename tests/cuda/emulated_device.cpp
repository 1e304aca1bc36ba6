#include "cuda/device_under_test.h"
#include "cuda/emulated/step_kernels.h"
#include "torchamp/multi_tensor/cuda_step.h"

namespace device_under_test {

at::Device device() { return at::kCPU; }
std::string why_skipped() { return ""; }
void take_kernels(bool cuda) {
  torchamp::multi_tensor::use_cuda_kernels_on_cpu(cuda ? &emulated::kernels() : nullptr);
}
void set_capturing(bool capturing) { emulated::capturing = capturing; }

}  // namespace device_under_test
