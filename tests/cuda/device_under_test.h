#pragma once
// Where tests of whole optimizers run: on a GPU, or on the host with the kernels in emulated/. The
// same tests are built for both.

#include <string>

#include <torch/torch.h>

namespace device_under_test {

/// CUDA, or CPU with emulated kernels.
at::Device device();
/// Empty, or why nothing can run here.
std::string why_skipped();
/// From now on fused steps of tensors on device() take the CUDA kernels, or the CPU's where the
/// device is the host.
void take_kernels(bool cuda);
/// Begins and ends a capture of the current stream; the host only says so.
void set_capturing(bool capturing);

}  // namespace device_under_test
