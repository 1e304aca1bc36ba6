#pragma once
// Who registered the kernels that an op has on CPU, as LibTorch tells it. Internal.

#include <string>
#include <string_view>

#include <ATen/core/dispatch/Dispatcher.h>

namespace torchamp::ops::detail {

/// Where another library registered a kernel for CPU tensors, or an empty string where LibTorch's
/// own are all there is. Asked while no kernel of ours is registered.
std::string others_kernel(const c10::OperatorHandle& op);
/// The same, from the text of OperatorHandle::dumpState(): a line for each kernel, "CPU: registered
/// at build/aten/src/ATen/RegisterCPU_0.cpp:12 ...", and with "(inactive)" behind the key for those
/// that a later one covers.
std::string others_kernel(std::string_view state);

/// Where the kernel on the CPU key was registered; empty: there is none.
std::string cpu_kernel(const c10::OperatorHandle& op);

}  // namespace torchamp::ops::detail
