#pragma once
// The CPU kernels that the environment asks for.

namespace torchamp::cli {

/// UsageError when TORCHAMP_CPU names no kernels that run here, or TORCHAMP_OPS is not on, off
/// or all: before a run begins, not in its first step.
void check_cpu_kernels();

}  // namespace torchamp::cli
