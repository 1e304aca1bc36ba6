#pragma once
// Whether this CPU computes in float16 itself. Internal.

namespace torchamp::ops::detail {

/// AVX512-FP16, which AMX-FP16 implies: LibTorch's float16 kernels are fast then. No machine of the
/// tests has it, so those kernels stay as they are there.
/// Source: Intel SDM vol. 2A, CPUID leaf 7, EDX bit 23.
bool has_fp16_arithmetic();

}  // namespace torchamp::ops::detail
