// full_state_dict() and its way back: a module's tensors by Python's names, weights in float32.

#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/ScalarType.h>
#include <torch/nn/module.h>

#include "torchamp/base/error.h"
#include "torchamp/optim/low_precision.h"
#include "torchamp/optim/master_weights.h"

namespace torchamp::optim {
namespace {

using base::StateDict;

// Own parameters, own buffers, then the children: Python's order. LibTorch's recursive lists put
// all parameters before all buffers.
template <typename Visit>
void for_tensors(const torch::nn::Module& module, const std::string& prefix, const Visit& visit) {
  const auto visit_defined = [&](const auto& items) {
    for (const auto& item : items) {
      if (item.value().defined()) visit(prefix + item.key(), item.value());
    }
  };
  visit_defined(module.named_parameters(/*recurse=*/false));
  visit_defined(module.named_buffers(/*recurse=*/false));
  for (const auto& child : module.named_children()) {
    if (child.value()) for_tensors(*child.value(), prefix + child.key() + ".", visit);
  }
}

std::string describe(const at::Tensor& tensor) {
  std::ostringstream text;
  text << c10::toString(tensor.scalar_type()) << tensor.sizes();
  return text.str();
}

// Whether a value of dtype `saved` may be copied into one of dtype `own`.
bool is_convertible(at::ScalarType saved, at::ScalarType own) {
  if (saved == own) return true;
  if (c10::isComplexType(saved) || c10::isComplexType(own)) {
    return c10::isComplexType(saved) && c10::isComplexType(own);
  }
  if (c10::isFloatingType(saved) || c10::isFloatingType(own)) {
    return c10::isFloatingType(saved) && c10::isFloatingType(own);
  }
  return false;  // counters and flags: a change of type would be a change of meaning
}

}  // namespace

StateDict full_state_dict(const torch::nn::Module& module) {
  StateDict dict;
  for_tensors(module, "", [&dict](const std::string& name, const at::Tensor& tensor) {
    const auto master = detail::find_master(tensor);
    dict.set(name, master ? master->to_float(tensor) : tensor.detach());
  });
  return dict;
}

base::Loading prepare_full_state_dict(torch::nn::Module& module, const StateDict& state) {
  base::Loading loading;
  std::vector<std::string> missing;
  std::vector<std::string> unexpected;
  std::vector<std::string> different;
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;  // to, from
  StateDict own;
  for_tensors(module, "", [&](const std::string& key, const at::Tensor& to) {
    own.set(key, base::Value());
    const std::string name = base::to_string(key);
    const base::Value* saved = state.find(key);
    if (saved == nullptr) {
      missing.push_back(name);
      return;
    }
    const auto* from = std::get_if<at::Tensor>(&saved->storage());
    if (from == nullptr || !from->defined()) {
      different.push_back(name + " is a " + saved->type_name() + ", not a tensor");
    } else if (from->sizes() != to.sizes() ||
               !is_convertible(from->scalar_type(), to.scalar_type())) {
      different.push_back(name + " is " + describe(*from) + ", not " + describe(to));
    } else {
      copies.emplace_back(to, *from);
    }
  });
  for (const auto& entry : state.entries()) {
    if (!own.contains(entry.key)) unexpected.push_back(base::to_string(entry.key));
  }
  loading.differences.add("missing", missing);
  loading.differences.add("unexpected", unexpected);
  loading.differences.add("of another shape or type", different);
  loading.apply = [copies = std::move(copies)] {
    for (const auto& [to, from] : copies) set_full_precision(to, from);
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
