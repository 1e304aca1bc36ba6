#include "cli/inspect_words.h"

#include <optional>
#include <string_view>

#include <torch/torch.h>

#include "cli/checkpoint_file.h"

namespace torchamp::cli {
namespace {

using base::StateDict;
using base::Value;

const Value* find(const StateDict& dict, const char* key) { return dict.find(key); }

const StateDict* as_dict(const Value* value) {
  return value == nullptr ? nullptr : std::get_if<StateDict>(&value->storage());
}

// A number, or the one that a tensor holds.
std::optional<double> number(const Value* value) {
  if (value == nullptr) return std::nullopt;
  if (value->is<int64_t>() || value->is<double>()) return value->to_double();
  const auto* tensor = std::get_if<at::Tensor>(&value->storage());
  if (tensor == nullptr || tensor->numel() != 1 || tensor->is_complex()) return std::nullopt;
  return as_doubles(tensor->reshape({1})).item().toDouble();
}

std::string number_text(double value) {
  const std::string text = float_text(value);
  return text.ends_with(".0") ? text.substr(0, text.size() - 2) : text;
}

// ", name value" when there is one.
std::string part(const char* name, const Value* value) {
  const std::optional<double> is = number(value);
  return is ? std::string(", ") + name + " " + number_text(*is) : "";
}

const StateDict* first_group(const StateDict& optimizer) {
  const Value* groups = find(optimizer, "param_groups");
  if (groups == nullptr || !groups->is<base::List>() || groups->to_items().empty()) return nullptr;
  return as_dict(&groups->to_items().front());
}

std::string optimizer_words(const StateDict& dict) {
  const StateDict* states = as_dict(find(dict, "state"));
  const StateDict* group = first_group(dict);
  if (states == nullptr || group == nullptr) return "";
  const StateDict* first = states->empty() ? nullptr : as_dict(&states->entries().front().value);
  std::string name = "optimizer";
  if (group->contains("nesterov")) {
    name = "SGD";
  } else if (group->contains("betas") && group->contains("bias_correction")) {
    name = "LAMB";
  } else if (group->contains("betas") && group->contains("amsgrad")) {
    const Value* decoupled = find(*group, "decoupled_weight_decay");
    name = decoupled == nullptr || !decoupled->is<bool>() ? "Adam or AdamW"
           : decoupled->to_bool()                         ? "AdamW"
                                                          : "Adam";
  }
  return name + " state of " + std::to_string(states->size()) +
         (states->size() == 1 ? " parameter" : " parameters") +
         (first != nullptr ? part("step", find(*first, "step")) : "") +
         part("lr", find(*group, "lr"));
}

std::string scaler_words(const StateDict& dict) {
  const std::optional<double> scale = number(find(dict, "scale"));
  const std::optional<double> tracker = number(find(dict, "_growth_tracker"));
  const std::optional<double> interval = number(find(dict, "growth_interval"));
  if (!scale || !tracker || !interval) return "";
  return "GradScaler state: scale " + number_text(*scale) + ", growth tracker " +
         number_text(*tracker) + " of " + number_text(*interval);
}

std::string generators_words(const StateDict& dict) {
  const Value* cpu = find(dict, "cpu");
  if (cpu == nullptr || !cpu->is<at::Tensor>()) return "";
  const Value* cuda = find(dict, "cuda");
  const size_t num_cuda = cuda != nullptr && cuda->is<base::List>() ? cuda->to_items().size() : 0;
  return "state of the random generators: CPU and " + std::to_string(num_cuda) + " CUDA";
}

std::string schedule_words(const StateDict& dict) {
  if (dict.contains("base_lrs") && dict.contains("last_step")) {
    return "learning-rate schedule" + part("step", find(dict, "last_step"));
  }
  if (dict.contains("last_epoch") && dict.contains("_last_lr")) {
    return "learning-rate schedule" + part("epoch", find(dict, "last_epoch"));
  }
  return "";
}

bool is_generator(const at::Tensor& tensor) {
  constexpr int64_t kCpuGeneratorBytes = 5056;  // of LibTorch's mt19937
  return tensor.scalar_type() == at::kByte && tensor.dim() == 1 &&
         tensor.numel() == kCpuGeneratorBytes;
}

}  // namespace

std::string words_for(const StateDict::Key& key, const Value& value) {
  if (const auto* tensor = std::get_if<at::Tensor>(&value.storage())) {
    return is_generator(*tensor) ? "state of a CPU random generator" : "";
  }
  const StateDict* dict = as_dict(&value);
  if (dict == nullptr) return "";
  const auto* name = std::get_if<std::string>(&key);
  if (dict->empty() && name != nullptr && name->starts_with("scaler")) {
    return "no GradScaler was in use";
  }
  if (dict->contains("n_averaged")) {
    return "averaged weights" + part("updates", find(*dict, "n_averaged"));
  }
  for (const auto describe : {optimizer_words, scaler_words, generators_words, schedule_words}) {
    std::string words = describe(*dict);
    if (!words.empty()) return words;
  }
  return "";
}

std::string run_words(const Value& root) {
  const StateDict* dict = as_dict(&root);
  if (dict == nullptr) return "";
  std::string words = part("epoch", find(*dict, "epoch")) + part("loss", find(*dict, "loss"));
  for (const char* key : {"optimizer_state_dict", "optimizer"}) {
    const StateDict* optimizer = as_dict(find(*dict, key));
    const StateDict* group = optimizer == nullptr ? nullptr : first_group(*optimizer);
    if (group == nullptr) continue;
    words += part("lr", find(*group, "lr"));
    break;
  }
  const StateDict* state = as_dict(find(*dict, "train_state"));
  const Value* precision = state == nullptr ? nullptr : find(*state, "precision");
  if (precision != nullptr && precision->is<std::string>()) {
    words += ", precision " + base::printable(precision->to_string());
  }
  const Value* version = find(*dict, "torchamp_version");
  if (version != nullptr && version->is<std::string>()) {
    words += ", written by torchamp " + base::printable(version->to_string());
  }
  return words.empty() ? "" : words.substr(2);
}

}  // namespace torchamp::cli
