// full_state_dict() and its way back: a module's tensors by Python's names, weights in float32.

#include <string>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include "torchamp/optim/low_precision.h"
#include "torchamp/optim/master_weights.h"
#include "torchamp/optim/named_tensors.h"

namespace torchamp::optim {

using base::StateDict;

StateDict full_state_dict(const torch::nn::Module& module) {
  StateDict dict;
  detail::for_each_tensor(module, [&](const std::string& name, const at::Tensor& tensor, bool) {
    const auto master = detail::find_master(tensor);
    dict.set(name, master ? master->to_float(tensor) : tensor.detach());
  });
  return dict;
}

base::Loading prepare_full_state_dict(torch::nn::Module& module, const StateDict& state) {
  detail::NamedCopies named(state);
  detail::for_each_tensor(
      module, [&](const std::string& name, const at::Tensor& to, bool) { named.expect(name, to); });
  base::Loading loading;
  named.report(loading.differences);
  loading.apply = [copies = named.copies()] {
    for (const auto& [from, to] : copies) set_full_precision(to, from);
  };
  return loading;
}

void load_full_state_dict(torch::nn::Module& module, const StateDict& state) {
  base::take_over(prepare_full_state_dict(module, state),
                  "[load_full_state_dict] the checkpoint is of another model: ",
                  "; the same names and shapes are expected. Was the model made with other "
                  "options?");
}

}  // namespace torchamp::optim
