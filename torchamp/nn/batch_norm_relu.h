#pragma once
// BatchNormReLU2d: batch norm, a residual and relu as one layer. The plain layers are LibTorch's;
// ops/install.h makes those faster.

#include <cstddef>
#include <cstdint>
#include <ostream>

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/common.h>
#include <torch/nn/modules/container/any_value.h>
#include <torch/nn/pimpl.h>

#include "torchamp/base/export.h"

namespace torchamp::nn {

/// relu(batch_norm(input) [+ residual]), with the options, names of parameters and buffers, and
/// behaviour in training and evaluation of torch::nn::BatchNorm2d, whose state_dict fits. On CPU
/// it reads and writes each tensor once where separate layers do so two or three times, forward
/// and backward, and makes no tensor in between.
///
/// Shapes:  input (N, C, H, W); residual of the same shape; returns the same.
/// Dtypes:  float32, bfloat16, float16 with parameters of the input's dtype or float32, computed
///          in float32 and rounded once. Other dtypes, and a residual of another dtype, take
///          LibTorch's layers one after the other.
/// Devices: any; fused on CPU in channels_last, with 16384 numbers or more. Else as above.
/// Memory:  keeps input and output for backward, as separate layers with relu_ do; at the time of
///          the call one tensor less.
/// Errors:  c10::Error where input is not 4-D, or the residual has another shape. Double backward
///          works.
/// Source:  PyTorch torch/nn/modules/batchnorm.py; Ioffe and Szegedy 2015, algorithm 1.
/// Example: examples/fused_batch_norm.cpp
class TORCHAMP_API BatchNormReLU2dImpl
    : public torch::nn::NormImplBase<2, BatchNormReLU2dImpl, torch::nn::BatchNormOptions> {
 public:
  explicit BatchNormReLU2dImpl(int64_t num_features)
      : BatchNormReLU2dImpl(torch::nn::BatchNormOptions(num_features)) {}
  explicit BatchNormReLU2dImpl(const torch::nn::BatchNormOptions& options)
      : NormImplBase(options) {}

  /// An undefined residual is none.
  at::Tensor forward(const at::Tensor& input, const at::Tensor& residual = {});

  void pretty_print(std::ostream& stream) const override;

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(at::Tensor())})

 private:
  void _check_input_dim(const at::Tensor& input) override;
  /// Counts the batch, and returns the share that it has in the running statistics.
  double count_batch();
};
TORCH_MODULE(BatchNormReLU2d);

}  // namespace torchamp::nn
