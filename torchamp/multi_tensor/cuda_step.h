#pragma once
// CudaStep: the engine of a fused step on a GPU: lists of arrays to tables in device memory, and
// the launches over them. Knows neither optimizers nor scalers.

#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "torchamp/base/export.h"
#include "torchamp/kernels/cuda/step.h"

namespace torchamp::multi_tensor {

/// One step over arrays on one device.
struct CudaStepRequest {
  kernels::cuda::Method method = kernels::cuda::Method::kAdam;
  /// first_chunk is filled in; the tensors behind the pointers must live until run() returns.
  std::vector<kernels::cuda::Arrays> arrays;
  std::vector<kernels::cuda::Numbers> groups;
  bool measures = false;           ///< look at the gradients first: for the norm, or the check
  bool checks = false;             ///< a non-finite gradient means a skip
  std::optional<double> max_norm;  ///< clip to this L2 norm; needs `measures`
  at::Tensor found_inf;            ///< float32, one element, any device: not 0 means a skip
};

/// Tensors without dimensions on the device of the step.
struct CudaStepResult {
  at::Tensor found_inf;  ///< float32: 0 when the step was applied
  at::Tensor norm;       ///< float32, float64 where a gradient is; undefined unless measured
  at::Tensor has_nan;    ///< bool; undefined unless measured
};

/// Table, scratch and launches of one optimizer on one device.
///
/// Nothing waits for the device. The table is copied only when it has changed, or the stream has.
/// While a CUDA graph is captured, table and scratch are the graph's own, and the table's bytes are
/// part of it. Launched on the current stream; one thread at a time.
class TORCHAMP_API CudaStep {
 public:
  /// Errors: c10::Error where has_cuda_step(device) is false.
  explicit CudaStep(at::Device device);

  at::Device device() const { return device_; }
  /// Errors: c10::Error with CUDA's words when a launch fails; c10::Error, before anything is
  ///         launched, when a graph is captured and found_inf lies on the host.
  CudaStepResult run(CudaStepRequest& request);
  /// Whether the current stream is being captured into a CUDA graph.
  bool is_capturing() const;

 private:
  at::Device device_;
  const kernels::cuda::Kernels* kernels_;
  std::vector<char> bytes_;  // what the table on the device holds
  at::Tensor table_;
  at::Tensor scratch_;
  CUstream_st* stream_ = nullptr;  // which table_ and scratch_ were made on
};

/// Whether fused steps of tensors on `device` go through CudaStep: a GPU, in a build with kernels.
TORCHAMP_API bool has_cuda_step(at::Device device);

/// Whether the current stream of `device` is being captured into a CUDA graph: what is launched
/// then does not run, and no number can be read. False where has_cuda_step(device) is.
TORCHAMP_API bool is_capturing(at::Device device);

/// Sends fused steps of CPU tensors through `kernels`, which run on memory of the host; for tests.
/// Null: as ever. Nothing may be running.
TORCHAMP_API void use_cuda_kernels_on_cpu(const kernels::cuda::Kernels* kernels);

}  // namespace torchamp::multi_tensor
