#pragma once
// Who registered the kernels that an op has on CPU, as LibTorch tells it. Internal.

#include <string>
#include <string_view>

#include <ATen/core/dispatch/Dispatcher.h>

namespace torchamp::ops::detail {

/// Where another library registered a kernel that one of ours on `key` (CPU, AutogradCPU,
/// AutocastCPU) would take calls from, or an empty string where LibTorch's own are all there is.
/// Asked while no kernel of ours is registered.
std::string others_kernel(const c10::OperatorHandle& op,
                          c10::DispatchKey key = c10::DispatchKey::CPU);
/// The same, from the text of OperatorHandle::dumpState(): a line for each kernel, "CPU: registered
/// at build/aten/src/ATen/RegisterCPU_0.cpp:12 ...", and with "(inactive)" behind the key for those
/// that a later one covers.
std::string others_kernel(std::string_view state,
                          c10::DispatchKey reached_from = c10::DispatchKey::CPU);

/// Where the kernel on that key itself was registered; empty: there is none.
std::string active_kernel(const c10::OperatorHandle& op, c10::DispatchKey wanted);

}  // namespace torchamp::ops::detail
