#pragma once
// The engine of a fused step on CPU: lists of arrays, cut into chunks, over the threads of
// LibTorch. Knows neither optimizers nor scalers.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include "torchamp/kernels/cpu/table.h"
#include "torchamp/multi_tensor/pending_factors.h"

namespace torchamp::multi_tensor {

/// The kernels in use on CPU.
///
/// Errors: c10::ValueError when TORCHAMP_CPU names no table that runs here.
const kernels::KernelTable& cpu_kernels();

/// LibTorch's at::sqrt for kernels; no functions where its roots are correctly rounded, as those of
/// the lanes are.
kernels::RootFunctions libtorch_roots();

/// How the elements of a dense float tensor are stored.
///
/// Errors: c10::ValueError beginning with `who()` for another dtype than f32, f64, bf16 and f16.
kernels::Storage storage_of(const at::Tensor& tensor, const std::function<std::string()>& who);

/// The value of a tensor of one float32; waits for its device, and asks no operator on CPU.
float host_value(const at::Tensor& scalar);

/// A gradient as kernels take it, in its own memory order; `values` is dense (any strides).
struct GradArray {
  kernels::GradStream stream;
  int64_t count = 0;
};

/// Calls visit(array, range) for ranges that together cover `counts[array]` elements of each array,
/// on several threads where there is enough to do. Ranges begin at multiples of kernels::kBlock8
/// and do not depend on the number of threads. The last come first: measure() has read them last,
/// so the cache may still have them.
void for_each_range(const std::vector<int64_t>& counts,
                    c10::function_ref<void(size_t array, kernels::Range range)> visit);

/// Puts factors that wait for a gradient into its stream; reads them from their device.
void set_factors(kernels::GradStream& stream, const PendingFactors& factors);

/// How many ranges an array of `count` elements is cut into, and which one `range` is.
size_t num_ranges(int64_t count);
size_t range_number(kernels::Range range);

/// What one look at all gradients tells.
struct GradTotals {
  double sum_of_squares = 0.0;  ///< of x * factor * second_factor, arrays and ranges in order
  bool has_nonfinite = false;
  bool has_nan = false;
};
GradTotals measure(const std::vector<GradArray>& gradients);
/// x <- x * factor * second_factor, in place.
void multiply(const std::vector<GradArray>& gradients);

}  // namespace torchamp::multi_tensor
