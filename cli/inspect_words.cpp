#include "cli/inspect_words.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <optional>
#include <vector>

#include <torch/torch.h>

#include "cli/checkpoint_file.h"
#include "cli/pieces.h"
#include "torchamp/base/words.h"

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
  std::array<char, 32> text{};
  const bool is_whole = std::fabs(value) < 0x1p53 && value == std::floor(value);
  std::snprintf(text.data(), text.size(), is_whole ? "%.0f" : "%.6g", value);
  return text.data();
}

// ", name value" when there is one.
std::string part(const char* name, const Value* value) {
  const std::optional<double> is = number(value);
  return is ? std::string(", ") + name + " " + number_text(*is) : "";
}

// The param_groups of an optimizer; empty when it is none.
std::vector<const StateDict*> groups_of(const StateDict& optimizer) {
  std::vector<const StateDict*> groups;
  const Value* value = find(optimizer, "param_groups");
  if (value == nullptr || !value->is<base::List>()) return groups;
  for (const Value& each : value->to_items()) {
    if (const StateDict* group = as_dict(&each)) groups.push_back(group);
  }
  return groups;
}

// By the keys of a group, which each optimizer of torch.optim's has of its own.
std::string optimizer_name(const StateDict& group) {
  if (group.contains("nesterov")) return "SGD";
  if (group.contains("alpha") && group.contains("centered")) return "RMSprop";
  if (group.contains("lr_decay") && group.contains("initial_accumulator_value")) return "Adagrad";
  if (group.contains("betas") && group.contains("bias_correction")) return "LAMB";
  if (!group.contains("betas") || !group.contains("amsgrad")) return "optimizer";
  const Value* decoupled = find(group, "decoupled_weight_decay");
  if (decoupled == nullptr || !decoupled->is<bool>()) return "Adam or AdamW";
  return decoupled->to_bool() ? "AdamW" : "Adam";
}

std::string optimizer_words(const StateDict& dict) {
  const StateDict* states = as_dict(find(dict, "state"));
  const std::vector<const StateDict*> groups = groups_of(dict);
  if (states == nullptr || groups.empty()) return "";
  size_t num_parameters = 0;
  for (const StateDict* group : groups) {
    const Value* parameters = find(*group, "params");
    if (parameters != nullptr && parameters->is<base::List>()) {
      num_parameters += parameters->to_items().size();
    }
  }
  std::string words = optimizer_name(*groups.front()) + " state of ";
  const bool is_partial = !states->empty() && states->size() < num_parameters;
  if (is_partial) words += std::to_string(states->size()) + " of ";
  words += base::counted(std::max(num_parameters, states->size()), "parameter");
  if (states->empty()) {
    words += ", still empty";
  } else if (const StateDict* first = as_dict(&states->entries().front().value)) {
    words += part("step", find(*first, "step"));
  }
  return words + part("lr", find(*groups.front(), "lr"));
}

std::string scaler_words(const StateDict& dict) {
  const std::optional<double> scale = number(find(dict, "scale"));
  const std::optional<double> tracker = number(find(dict, "_growth_tracker"));
  const std::optional<double> interval = number(find(dict, "growth_interval"));
  if (!scale || !tracker || !interval) return "";
  return "GradScaler state: scale " + number_text(*scale) + ", " + number_text(*tracker) + " of " +
         number_text(*interval) + " steps without overflow until it grows";
}

std::string history_words(const StateDict& dict) {
  const std::optional<double> applied = number(find(dict, "applied_steps"));
  const std::optional<double> skipped = number(find(dict, "skipped_steps"));
  if (!applied || !skipped) return "";
  return "what the scaler did: " + number_text(*applied) +
         (*applied == 1 ? " step applied, " : " steps applied, ") + number_text(*skipped) +
         " skipped";
}

std::string generators_words(const StateDict& dict) {
  const Value* cpu = find(dict, "cpu");
  if (cpu == nullptr || !cpu->is<at::Tensor>()) return "";
  const Value* cuda = find(dict, "cuda");
  const size_t num_cuda = cuda != nullptr && cuda->is<base::List>() ? cuda->to_items().size() : 0;
  return "state of the random generators: CPU" +
         (num_cuda == 0 ? "" : " and " + base::counted(num_cuda, "CUDA device"));
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

std::string average_words(const StateDict& dict) {
  const std::optional<double> updates = number(find(dict, "n_averaged"));
  if (!updates) return "";
  return "averaged weights, updated " + number_text(*updates) +
         (*updates == 1 ? " time" : " times");
}

std::string weights_words(const StateDict& dict) {
  bool has_weight = false;
  for (const auto& [key, value] : dict.entries()) {
    const auto* name = std::get_if<std::string>(&key);
    if (name == nullptr || !value.is<at::Tensor>()) return "";
    has_weight = has_weight || name->ends_with("weight");
  }
  return has_weight ? "weights of a model" : "";
}

// What a Trainer puts beside the entries that others have, too.
std::string trainer_words(const std::string& key, const StateDict& dict) {
  if (key == "train_state" && dict.contains("next_batch")) {
    return "where the run stands" + part("epoch", find(dict, "epoch")) +
           part("step", find(dict, "step")) + part("skipped", find(dict, "skipped"));
  }
  if (key == "checkpoint_manager" && dict.contains("best_step")) {
    return "the best checkpoint so far" + part("step", find(dict, "best_step")) +
           part("metric", find(dict, "best_metric"));
  }
  if (key == "ops_choices" && dict.contains("choices")) return "kernels chosen by measurement";
  if (key == "config") return "options of the run";
  if (key == "data_state") return "state of the data set";
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
  if (name != nullptr) {
    if (dict->empty() && name->starts_with("scaler")) return "no GradScaler was in use";
    std::string words = trainer_words(*name, *dict);
    if (!words.empty()) return words;
  }
  for (const auto describe : {optimizer_words, scaler_words, history_words, generators_words,
                              schedule_words, average_words, weights_words}) {
    std::string words = describe(*dict);
    if (!words.empty()) return words;
  }
  return "";
}

std::string run_words(const Value& root) {
  const StateDict* dict = as_dict(&root);
  if (dict == nullptr) return "";
  const StateDict* state = as_dict(find(*dict, "train_state"));
  std::string words = part("epoch", find(*dict, "epoch"));
  words += state != nullptr ? part("step", find(*state, "step"))
                            : part("step", find(*dict, "global_step"));
  words += part("loss", find(*dict, "loss"));
  for (const char* key : {"optimizer_state_dict", "optimizer"}) {
    const StateDict* optimizer = as_dict(find(*dict, key));
    if (optimizer == nullptr) continue;
    const std::vector<const StateDict*> groups = groups_of(*optimizer);
    if (!groups.empty()) words += part("lr", find(*groups.front(), "lr"));
    break;
  }
  for (const char* key : {"scaler_state_dict", "scaler"}) {
    const StateDict* scaler = as_dict(find(*dict, key));
    if (scaler != nullptr) words += part("loss scale", find(*scaler, "scale"));
  }
  const Value* precision = state == nullptr ? nullptr : find(*state, "precision");
  if (precision != nullptr && precision->is<std::string>()) {
    words += ", precision " + base::printable(precision->to_string());
  }
  const Value* version = find(*dict, "torchamp_version");
  if (version != nullptr && version->is<std::string>()) {
    words += ", written by torchamp " + base::printable(version->to_string());
  }
  return words.empty() ? words_for("", root) : words.substr(2);
}

}  // namespace torchamp::cli
