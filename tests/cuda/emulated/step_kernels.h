#pragma once
// The library's CUDA kernels on the host, and what the emulated runtime can be told.

#include <cstdint>

#include "torchamp/kernels/cuda/step.h"

namespace emulated {

/// Launches run at once, on memory of the host.
const torchamp::kernels::cuda::Kernels& kernels();

/// Whether streams say that they are being captured.
extern bool capturing;
/// Whether thread blocks run in the opposite order.
extern bool backwards;
extern int64_t num_launches;
/// The launch, counted by num_launches, that fails.
extern int64_t failing_launch;
/// Whether a failure waits in the runtime for whoever asks next.
bool has_error();

}  // namespace emulated
