// The RowKernels of a table; table.inl.h includes it. Everything has internal linkage.

// In this order.
#include "torchamp/kernels/cpu/sixteen.inl.h"
//
#include "torchamp/kernels/cpu/gelu.inl.h"
#include "torchamp/kernels/cpu/layer_norm.inl.h"
#include "torchamp/kernels/cpu/softmax.inl.h"

namespace torchamp::kernels {
namespace {

constexpr RowKernels row_kernels() {
  return {log_sums, weighted_sums, log_softmax, log_softmax_backward, cross_entropy_backward,
          gelu,     gelu_backward, layer_norm,  layer_norm_backward};
}

}  // namespace
}  // namespace torchamp::kernels
