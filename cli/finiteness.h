#pragma once
// How much of a tensor's data is not finite, and its largest magnitude.

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace torchamp::cli {

/// What all values of a tensor tell; the parts of a complex one are two values.
struct Finiteness {
  int64_t num_nan = 0;
  int64_t num_inf = 0;
  double max_abs = 0;  // of the finite ones

  bool is_finite() const { return num_nan == 0 && num_inf == 0; }
};

/// Of each of `tensors`: floating or complex, on the CPU, of any shape and strides.
std::vector<Finiteness> finiteness(const std::vector<at::Tensor>& tensors);

}  // namespace torchamp::cli
