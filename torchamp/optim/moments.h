#pragma once
// How moments and momentum buffers are stored: MomentScales, MomentArrays. Internal to the
// optimizers.

#include <array>
#include <cstdint>
#include <unordered_map>

#include <ATen/core/Tensor.h>

#include "torchamp/kernels/storage.h"
#include "torchamp/optim/fused_options.h"
#include "torchamp/optim/step_plan.h"

namespace torchamp::optim::detail {

/// The float32 factors of 8-bit moments, by parameter: one for each block of kernels::kBlock8.
struct MomentScales {
  std::unordered_map<const void*, std::array<at::Tensor, 3>> of;
};

/// The dtype in which an optimizer keeps the moments of `parameter`: float64 for double precision;
/// the parameter's own with LowPrecisionWeights::kPlain; else as options.moments says (Byte for
/// 8-bit).
at::ScalarType moment_dtype(const at::Tensor& parameter, const FusedOptions& options);

/// The arrays of one item of a plan: makes moments that are undefined, as zeros, and brings others
/// into the memory order and dtype that the kernels need.
class MomentArrays {
 public:
  /// `step` counts the steps applied before this one.
  MomentArrays(const PlanItem& item, const FusedOptions& options, MomentScales& scales,
               int64_t step);

  kernels::Stream parameter() const;
  /// `number` tells the moments of one parameter apart: 0, 1, 2.
  kernels::Stream signed_moment(at::Tensor& moment, int number);
  kernels::Stream positive_moment(at::Tensor& moment, int number);

 private:
  void adapt(at::Tensor& moment, at::Tensor& scale, bool is_positive) const;
  kernels::Stream moment_stream(at::Tensor& moment, int number, kernels::Storage of_8_bits);

  const PlanItem& item_;
  const FusedOptions& options_;
  MomentScales& scales_;
  uint64_t step_key_;
};

/// 8-bit moments as float32, in their own memory order, and back: `scale` gets the factors.
at::Tensor decode_moment(const at::Tensor& codes, const at::Tensor& scale, bool is_positive);
at::Tensor encode_moment(const at::Tensor& values, bool is_positive, uint64_t seed,
                         at::Tensor& scale);

}  // namespace torchamp::optim::detail
