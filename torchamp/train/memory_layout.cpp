#include "torchamp/train/memory_layout.h"

#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

namespace torchamp::train {

void to_channels_last(torch::nn::Module& module) {
  const at::NoGradGuard no_grad;
  for (at::Tensor& parameter : module.parameters()) {
    if (parameter.dim() == 4) {
      parameter.set_data(parameter.contiguous(at::MemoryFormat::ChannelsLast));
    }
  }
}

}  // namespace torchamp::train
