#include "torchamp/train/module_state.h"

#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/ScalarType.h>

namespace torchamp::train {
namespace {

using base::StateDict;

// Own parameters, own buffers, then the children: Python's order. LibTorch's recursive lists put
// all parameters before all buffers.
void collect(const torch::nn::Module& module, const std::string& prefix, StateDict& dict) {
  const auto add = [&](const auto& items) {
    for (const auto& item : items) {
      if (item.value().defined()) dict.set(prefix + item.key(), item.value().detach());
    }
  };
  add(module.named_parameters(/*recurse=*/false));
  add(module.named_buffers(/*recurse=*/false));
  for (const auto& child : module.named_children()) {
    if (child.value()) collect(*child.value(), prefix + child.key() + ".", dict);
  }
}

std::string describe(const at::Tensor& tensor) {
  std::ostringstream text;
  text << c10::toString(tensor.scalar_type()) << tensor.sizes();
  return text.str();
}

// "2 missing ('a', 'b')", or nothing.
void append(std::string& text, const char* what, const std::vector<std::string>& names) {
  if (names.empty()) return;
  text += (text.empty() ? "" : "; ") + std::to_string(names.size()) + " " + what + " (";
  for (size_t i = 0; i < names.size(); ++i) text += (i ? ", " : "") + names[i];
  text += ")";
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

StateDict module_state_dict(const torch::nn::Module& module) {
  StateDict dict;
  collect(module, "", dict);
  return dict;
}

void load_module_state_dict(torch::nn::Module& module, const StateDict& dict) {
  // 1. Compare all.
  const StateDict own = module_state_dict(module);
  std::vector<std::string> missing;
  std::vector<std::string> unexpected;
  std::vector<std::string> different;
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;  // to, from
  for (const auto& [key, value] : own.entries()) {
    const std::string name = base::to_string(key);
    const at::Tensor& to = value.to_tensor(name);
    const base::Value* saved = dict.find(key);
    if (saved == nullptr) {
      missing.push_back(name);
      continue;
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
  }
  for (const auto& entry : dict.entries()) {
    if (!own.contains(entry.key)) unexpected.push_back(base::to_string(entry.key));
  }
  std::string differences;
  append(differences, "missing", missing);
  append(differences, "unexpected", unexpected);
  append(differences, "of another shape or type", different);
  if (!differences.empty()) {
    throw base::CheckpointError(
        "[load_module_state_dict] the checkpoint is of another model: " + differences +
        "; the same names and shapes are expected. Was the "
        "model made with other options?");
  }

  // 2. Copy all.
  const at::NoGradGuard no_grad;
  for (auto& [to, from] : copies) to.copy_(from);
}

}  // namespace torchamp::train
