// The RowKernels of a table; table.inl.h includes it. Everything has internal linkage.

// In this order.
#include "torchamp/kernels/cpu/sixteen.inl.h"
//
#include "torchamp/kernels/cpu/gelu.inl.h"
#include "torchamp/kernels/cpu/group_norm.inl.h"
#include "torchamp/kernels/cpu/layer_norm.inl.h"
#include "torchamp/kernels/cpu/row_sums.inl.h"
#include "torchamp/kernels/cpu/smooth_l1.inl.h"
#include "torchamp/kernels/cpu/softmax.inl.h"

namespace torchamp::kernels {
namespace {

constexpr RowKernels row_kernels() {
  return {log_sums,
          weighted_sums,
          log_softmax,
          log_softmax_backward,
          cross_entropy_backward,
          gelu,
          gelu_backward,
          layer_norm,
          layer_norm_backward,
          group_norm,
          group_norm_backward,
          smooth_l1,
          smooth_l1_sum,
          smooth_l1_backward,
          add_row,
          scale_and_add_row};
}

}  // namespace
}  // namespace torchamp::kernels
