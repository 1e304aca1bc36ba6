// The RowKernels of a table; table.inl.h includes it. Everything has internal linkage.

#include "torchamp/kernels/cpu/sixteen.inl.h"
#include "torchamp/kernels/cpu/softmax.inl.h"

namespace torchamp::kernels {
namespace {

constexpr RowKernels row_kernels() {
  return {log_sums, weighted_sums, log_softmax, log_softmax_backward, cross_entropy_backward};
}

}  // namespace
}  // namespace torchamp::kernels
