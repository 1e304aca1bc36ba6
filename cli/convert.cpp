#include "cli/convert.h"

#include <cctype>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <tuple>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "cli/checkpoint_file.h"
#include "torchamp/base/error.h"
#include "torchamp/base/words.h"
#include "torchamp/checkpoint/checkpoint.h"
#include "torchamp/checkpoint/safetensors.h"

namespace torchamp::cli {
namespace {

using base::StateDict;
using base::UsageError;
using base::Value;

struct ConvertOptions {
  std::string from;
  std::string to;
  std::string key;
  std::string dtype;
  bool skip_others = false;
};

std::string shown(const std::string& text) { return "'" + base::printable(text) + "'"; }

bool is_safetensors_name(const std::filesystem::path& path) {
  const std::string ending = path.extension().string();
  std::string extension = ending;
  for (char& letter : extension) {
    letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  }
  if (extension == ".safetensors") return true;
  if (extension == ".pt" || extension == ".pth" || extension == ".bin") return false;
  throw UsageError("[convert] " + shown(path.string()) +
                   (ending.empty() ? " has no ending" : " ends in " + shown(ending)) +
                   "; .pt, .pth, .bin and .safetensors are accepted.");
}

const StateDict* as_dict(const Value* value) {
  return value == nullptr ? nullptr : std::get_if<StateDict>(&value->storage());
}

bool holds_a_tensor(const StateDict& dict) {
  for (const auto& entry : dict.entries()) {
    if (entry.value.is<at::Tensor>()) return true;
    const StateDict* inner = as_dict(&entry.value);
    if (inner != nullptr && holds_a_tensor(*inner)) return true;
  }
  return false;
}

bool holds_tensors_alone(const StateDict& dict) {
  for (const auto& entry : dict.entries()) {
    const StateDict* inner = as_dict(&entry.value);
    if (inner != nullptr ? !holds_tensors_alone(*inner) : !entry.value.is<at::Tensor>())
      return false;
  }
  return true;
}

// The keys of the dicts in `dict` that hold tensors, for messages; empty when there are none.
std::string choices(const StateDict& dict) {
  constexpr int kShown = 10;
  int num_choices = 0;
  std::string names;
  for (const auto& [key, value] : dict.entries()) {
    const StateDict* inner = as_dict(&value);
    if (inner == nullptr || !holds_a_tensor(*inner)) continue;
    if (++num_choices > kShown) return names + ", ...";
    names += (names.empty() ? "" : ", ") + base::to_string(key);
  }
  return names;
}

const Value* find_key(const StateDict& dict, const std::string& key) {
  if (const Value* value = dict.find(key)) return value;
  const bool is_number =
      !key.empty() && key.size() < 18 && key.find_first_not_of("0123456789") == std::string::npos;
  return is_number ? dict.find(int64_t{std::stoll(key)}) : nullptr;
}

// The dict at a dotted path; keys may hold dots themselves.
const StateDict* find_path(const StateDict& dict, const std::string& path) {
  if (const StateDict* found = as_dict(find_key(dict, path))) return found;
  for (size_t dot = path.find('.'); dot != std::string::npos; dot = path.find('.', dot + 1)) {
    const StateDict* inner = as_dict(find_key(dict, path.substr(0, dot)));
    const StateDict* found = inner == nullptr ? nullptr : find_path(*inner, path.substr(dot + 1));
    if (found != nullptr) return found;
  }
  return nullptr;
}

struct Chosen {
  const StateDict* dict = nullptr;
  std::string key;  // empty: the whole file
};

Chosen choose(const CheckpointFile& file, const ConvertOptions& options) {
  const std::string who = "[convert] " + shown(file.path.string());
  const StateDict* root = as_dict(&file.root);
  if (root == nullptr) {
    throw UsageError(who + " holds " + base::with_article(file.root.type_name()) +
                     "; a dict of tensors is accepted.");
  }
  if (!options.key.empty()) {
    const StateDict* found = find_path(*root, options.key);
    if (found != nullptr) return {found, options.key};
    const std::string names = choices(*root);
    throw UsageError(
        who + " has no dict " + shown(options.key) + " (--key)" +
        (names.empty() ? ", and none with tensors." : "; those with tensors are: " + names + "."));
  }
  for (const char* key : {"model_state_dict", "state_dict", "model"}) {
    if (const StateDict* found = as_dict(root->find(key))) return {found, key};
  }
  if (holds_tensors_alone(*root)) return {root, ""};
  for (const auto& entry : root->entries()) {
    if (options.skip_others && entry.value.is<at::Tensor>()) return {root, ""};
  }
  if (!holds_a_tensor(*root)) throw UsageError(who + " has no tensors to convert.");
  const std::string names = choices(*root);
  throw UsageError(who +
                   " holds other values than tensors, and neither model_state_dict nor state_dict "
                   "nor model; " +
                   (names.empty() ? "--skip-others leaves such values out."
                                  : "name the tensors' entry with --key, one of: " + names + "."));
}

// Tensors by their dotted names.
class Flattened {
 public:
  Flattened(const StateDict& dict, const CheckpointFile& file, bool skip_others)
      : who_("[convert] " + shown(file.path.string())), skip_others_(skip_others) {
    add(dict, "");
  }

  StateDict tensors;
  std::vector<std::string> others;

 private:
  void add(const StateDict& dict, const std::string& prefix) {
    for (const auto& [key, value] : dict.entries()) {
      const auto* text = std::get_if<std::string>(&key);
      const std::string name =
          prefix + (text != nullptr ? *text : std::to_string(std::get<int64_t>(key)));
      if (const StateDict* inner = as_dict(&value)) {
        add(*inner, name + ".");
      } else if (!value.is<at::Tensor>()) {
        if (!skip_others_) {
          throw UsageError(who_ + " holds " + shown(name) + ", " +
                           base::with_article(value.type_name()) +
                           ", beside the tensors; --skip-others leaves such values out.");
        }
        others.push_back(name);
      } else if (tensors.contains(name)) {
        throw UsageError(who_ + " holds two tensors that would both be called " + shown(name) +
                         "; choose a part of it with --key.");
      } else {
        tensors.set(name, value);
      }
    }
  }

  std::string who_;
  bool skip_others_;
};

// Converts floating tensors; those that were one tensor stay one.
class Casts {
 public:
  explicit Casts(at::ScalarType dtype) : dtype_(dtype) {}

  void apply(StateDict& tensors) {
    StateDict result;
    for (const auto& [key, value] : tensors.entries()) {
      const at::Tensor& tensor = value.to_tensor();
      result.set(key, tensor.is_floating_point() ? cast(tensor) : tensor);
    }
    tensors = std::move(result);
  }

  int num_overflows() const { return num_overflows_; }

 private:
  at::Tensor cast(const at::Tensor& tensor) {
    if (tensor.scalar_type() == dtype_) return tensor;
    const auto identity =
        std::tuple(tensor.storage().unsafeGetStorageImpl(), tensor.storage_offset(),
                   tensor.scalar_type(), tensor.sizes().vec(), tensor.strides().vec());
    at::Tensor& result = done_[identity];
    if (!result.defined()) {
      // 8-bit floats are converted to float32 alone.
      const at::Tensor from = tensor.element_size() == 1 ? tensor.to(at::kFloat) : tensor;
      result = from.to(dtype_);
      const bool is_narrower = dtype_ == at::kHalf || tensor.scalar_type() == at::kDouble;
      if (is_narrower && torch::isinf(result).any().item<bool>() &&
          !torch::isinf(from).any().item<bool>()) {
        ++num_overflows_;
      }
    }
    return result;
  }

  at::ScalarType dtype_;
  std::map<std::tuple<const c10::StorageImpl*, int64_t, at::ScalarType, std::vector<int64_t>,
                      std::vector<int64_t>>,
           at::Tensor>
      done_;
  int num_overflows_ = 0;
};

std::string list(const std::vector<std::string>& names) {
  constexpr size_t kShown = 8;
  std::string text;
  for (size_t i = 0; i < names.size() && i < kShown; ++i) {
    text += (i > 0 ? ", " : "") + shown(names[i]);
  }
  if (names.size() > kShown) text += " and " + std::to_string(names.size() - kShown) + " more";
  return text;
}

uint64_t num_bytes(const StateDict& tensors) {
  uint64_t bytes = 0;
  for (const auto& entry : tensors.entries()) bytes += entry.value.to_tensor().nbytes();
  return bytes;
}

// Expanded tensors of a few bytes would fill the disk.
void check_size(const CheckpointFile& file, const StateDict& tensors) {
  constexpr uint64_t kHarmless = uint64_t{1} << 30;
  constexpr uint64_t kMostFold = 64;
  const uint64_t bytes = num_bytes(tensors);
  if (bytes <= kHarmless || bytes / kMostFold <= file.bytes) return;
  throw UsageError("[convert] " + shown(file.path.string()) + " of " + bytes_text(file.bytes) +
                   " holds tensors of " + bytes_text(bytes) +
                   " that repeat their memory, which safetensors writes out; up to 64 times the "
                   "file's size is accepted. Was an expanded tensor saved?");
}

void run_convert(const ConvertOptions& options) {
  const bool to_safetensors = is_safetensors_name(options.to);
  std::error_code ignored;
  if (std::filesystem::equivalent(options.from, options.to, ignored)) {
    throw UsageError("[convert] " + shown(options.to) +
                     " is the file to read; another one is accepted as the file to write.");
  }
  const CheckpointFile file = open_checkpoint(options.from);
  const Chosen chosen = choose(file, options);
  Flattened flat(*chosen.dict, file, options.skip_others);
  if (flat.tensors.empty()) {
    throw UsageError("[convert] " + shown(options.from) + " has no tensors to convert" +
                     (chosen.key.empty() ? "" : " in " + shown(chosen.key)) + ".");
  }
  if (to_safetensors) check_size(file, flat.tensors);
  std::string notes;
  if (!options.dtype.empty()) {
    const at::ScalarType dtype = options.dtype.starts_with("b")  ? at::kBFloat16
                                 : options.dtype.ends_with("16") ? at::kHalf
                                                                 : at::kFloat;
    Casts casts(dtype);
    casts.apply(flat.tensors);
    notes += ", floats as " + base::dtype_name(dtype);
    if (casts.num_overflows() > 0) {
      notes +=
          " (" + std::to_string(casts.num_overflows()) + " of the tensors overflowed to infinity)";
    }
  }
  const uint64_t bytes = num_bytes(flat.tensors);

  if (to_safetensors) {
    StateDict metadata = file.metadata;
    // What readers of Hugging Face's libraries look for.
    if (!file.is_safetensors) metadata.set("format", "pt");
    checkpoint::save_safetensors(options.to, flat.tensors, metadata);
  } else {
    checkpoint::save(options.to, flat.tensors);
    if (!file.metadata.empty()) notes += ", metadata left out";
  }
  if (!flat.others.empty()) notes += ", left out: " + list(flat.others);
  std::printf("%s: %s of %s, %s%s\n", base::printable(options.to).c_str(),
              base::counted(flat.tensors.size(), "tensor").c_str(),
              chosen.key.empty() ? shown(options.from).c_str()
                                 : (shown(chosen.key) + " in " + shown(options.from)).c_str(),
              bytes_text(bytes).c_str(), notes.c_str());
}

}  // namespace

void setup_convert(CLI::App& app) {
  auto options = std::make_shared<ConvertOptions>();
  CLI::App* convert = app.add_subcommand(
      "convert", "Write the tensors of a .pt or safetensors file as the other, or the same, kind");
  convert->add_option("FROM", options->from, "The file to read, known by its content")->required();
  convert
      ->add_option(
          "TO", options->to,
          "The file to write, in one step: .safetensors, or .pt, .pth, .bin for torch.load")
      ->required();
  convert->add_option("--key", options->key,
                      "The entry to take, a dotted path (default: model_state_dict, state_dict or "
                      "model, else the whole file when it holds tensors alone)");
  convert
      ->add_option("--dtype", options->dtype,
                   "Convert floating tensors to this type (default: as they are)")
      ->check(CLI::IsMember({"fp32", "bf16", "fp16", "float32", "bfloat16", "float16"}));
  convert->add_flag("--skip-others", options->skip_others,
                    "Leave out what is no tensor (default: an error)");
  convert->callback([options] { run_convert(*options); });
}

}  // namespace torchamp::cli
