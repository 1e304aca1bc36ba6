#include "torchamp/train/module_state.h"

#include "torchamp/optim/low_precision.h"

namespace torchamp::train {

base::StateDict module_state_dict(const torch::nn::Module& module) {
  return optim::full_state_dict(module);
}

void load_module_state_dict(torch::nn::Module& module, const base::StateDict& dict) {
  optim::load_full_state_dict(module, dict);
}

}  // namespace torchamp::train
