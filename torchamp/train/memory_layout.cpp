#include "torchamp/train/memory_layout.h"

#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include "torchamp/optim/low_precision.h"

namespace torchamp::train {

void to_channels_last(torch::nn::Module& module) {
  const at::NoGradGuard no_grad;
  for (at::Tensor& parameter : module.parameters()) {
    if (parameter.dim() == 4) {
      const at::Tensor exact = optim::full_precision(parameter);
      parameter.set_data(parameter.contiguous(at::MemoryFormat::ChannelsLast));
      if (exact.scalar_type() != parameter.scalar_type()) {
        optim::set_full_precision(parameter, exact);  // a master follows
      }
    }
  }
}

}  // namespace torchamp::train
