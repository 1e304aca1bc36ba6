#include "cli/inspect.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "cli/checkpoint_file.h"
#include "cli/exit_code.h"
#include "cli/inspect_diff.h"
#include "cli/inspect_tree.h"
#include "cli/inspect_words.h"
#include "cli/pieces.h"
#include "torchamp/base/error.h"
#include "torchamp/base/words.h"
#include "torchamp/checkpoint/checkpoint.h"

namespace torchamp::cli {
namespace {

using base::StateDict;
using base::Value;
using Json = nlohmann::ordered_json;

struct InspectOptions {
  std::string file;
  std::string other;
  bool json = false;
  bool all = false;
  bool no_values = false;
  bool check = false;
  bool verify = false;
};

std::string short_number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g", value);
  return text;
}

std::string finiteness_text(const Finiteness& values) {
  std::string text;
  if (values.num_nan > 0) text += std::to_string(values.num_nan) + " NaN, ";
  if (values.num_inf > 0) text += std::to_string(values.num_inf) + " inf, ";
  return text + "max " + short_number(values.max_abs);
}

// Characters that the dtypes and shapes of the tree take.
struct Columns {
  size_t dtype = 0;
  size_t shape = 0;
};

std::string describe(const Tree& tree, const Row& row, bool with_values, const Columns& columns) {
  const Value& value = *row.value;
  const std::string words = row.words.empty() ? "" : ": " + row.words;
  if (const auto* tensor = std::get_if<at::Tensor>(&value.storage())) {
    std::string result = base::dtype_name(tensor->scalar_type());
    result.resize(std::max(result.size(), columns.dtype), ' ');
    result += "  " + shape_text(tensor->sizes());
    result.resize(std::max(result.size(), columns.dtype + 2 + columns.shape), ' ');
    char size[32];
    std::snprintf(size, sizeof size, "  %10s", bytes_text(tensor->nbytes()).c_str());
    result += size;
    if (with_values && tensor->numel() == 1 && !tensor->is_complex()) {
      result += "  = " + short_number(as_doubles(tensor->reshape({1})).item().toDouble());
    } else if (row.values && tensor->numel() > 0) {
      result += "  " + finiteness_text(*row.values);
    }
    if (!row.words.empty()) result += "  " + row.words;
    if (row.shares) result += "  (storage of " + tree.name_of(*row.shares) + ")";
    return result;
  }
  if (const auto* dict = std::get_if<StateDict>(&value.storage())) {
    return "dict of " + std::to_string(dict->size()) + words;
  }
  const std::vector<Value>* items = items_of(value);
  if (items != nullptr && !row.is_inline) {
    return std::string(value.type_name()) + " of " + std::to_string(items->size()) + words;
  }
  return value_text(value) + words;
}

void print_tree(const Tree& tree, bool with_values) {
  constexpr size_t kWidest = 44;
  const auto indent = [](const Row& row) { return 2 * row.depth; };
  constexpr size_t kWidestShape = 24;
  size_t width = 0;
  Columns columns;
  for (const Row& row : tree.rows()) {
    const size_t wanted = indent(row) + row.label.size();
    if (!row.is_shown || row.value == nullptr) continue;
    if (wanted <= kWidest) width = std::max(width, wanted);
    const auto* tensor = std::get_if<at::Tensor>(&row.value->storage());
    if (tensor == nullptr) continue;
    columns.dtype = std::max<size_t>(columns.dtype, base::dtype_name(tensor->scalar_type()).size());
    const size_t shape = shape_text(tensor->sizes()).size();
    if (shape <= kWidestShape) columns.shape = std::max<size_t>(columns.shape, shape);
  }
  for (const Row& row : tree.rows()) {
    if (!row.is_shown) continue;
    std::string line(indent(row), ' ');
    if (row.num_more > 0) {
      line += "... " + std::to_string(row.num_more) + " more (--all shows them)";
    } else {
      line += row.label;
      line.resize(std::max(line.size(), width), ' ');
      line += "  " + describe(tree, row, with_values, columns);
    }
    std::printf("%s\n", line.c_str());
  }
}

void print_text(const CheckpointFile& file, const Tree& tree, const InspectOptions& options) {
  std::printf("%s: %s, %s\n", base::printable(file.path.string()).c_str(), file.format,
              bytes_text(file.bytes).c_str());
  if (const std::string words = run_words(file.root); !words.empty()) {
    std::printf("%s\n", words.c_str());
  }
  for (const auto& [key, value] : file.metadata.entries()) {
    std::printf("metadata %s: %s\n", base::to_string(key).c_str(), value_text(value).c_str());
  }
  print_tree(tree, !options.no_values);
  std::printf("%s\n", tree.sums().c_str());
  if (options.verify) {
    std::printf("%s\n", file.has_checksums ? "every checksum is right"
                        : file.is_safetensors
                            ? "no checksums: safetensors has none; the header is right"
                            : "no checksums: files before PyTorch 1.6 have none");
  }
  if (options.no_values || !tree.has_tensors()) return;
  const std::vector<std::string> not_finite = tree.not_finite();
  if (not_finite.empty()) {
    std::printf("all finite\n");
    return;
  }
  std::printf("not finite (%zu):", not_finite.size());
  const char* separator = " ";
  for (const std::string& name : not_finite) {
    std::printf("%s%s", separator, name.c_str());
    separator = ", ";
  }
  std::printf("\n");
}

Json row_json(const Tree& tree, size_t index) {
  const Row& row = tree.rows()[index];
  const Value& value = *row.value;
  Json json = {{"key", tree.path_of(index)}, {"type", value.type_name()}};
  if (const auto* tensor = std::get_if<at::Tensor>(&value.storage())) {
    json["dtype"] = base::dtype_name(tensor->scalar_type());
    json["shape"] = tensor->sizes().vec();
    json["bytes"] = tensor->nbytes();
    if (row.shares) json["storage_of"] = tree.path_of(*row.shares);
    if (row.values) {
      json["nan"] = row.values->num_nan;
      json["inf"] = row.values->num_inf;
      json["max_abs"] = row.values->max_abs;
    }
  } else if (const auto* dict = std::get_if<StateDict>(&value.storage())) {
    json["size"] = dict->size();
  } else if (const std::vector<Value>* items = items_of(value)) {
    json["size"] = items->size();
    if (row.is_inline) {
      Json values = Json::array();
      for (const Value& item : *items) values.push_back(value_json(item));
      json["value"] = values;
    }
  } else {
    json["value"] = value_json(value);
  }
  if (!row.words.empty()) json["what"] = row.words;
  return json;
}

// What the file's strings hold may not be UTF-8; JSON is.
void print_json(const Json& json) {
  std::printf("%s\n", json.dump(2, ' ', false, Json::error_handler_t::replace).c_str());
}

void print_json(const CheckpointFile& file, const Tree& tree, const InspectOptions& options) {
  Json metadata = Json::object();
  for (const auto& [key, value] : file.metadata.entries()) {
    metadata[std::get<std::string>(key)] = value.to_string();
  }
  Json entries = Json::array();
  for (size_t i = 0; i < tree.rows().size(); ++i) {
    if (tree.rows()[i].num_more == 0) entries.push_back(row_json(tree, i));
  }
  const std::string words = run_words(file.root);
  Json json = {{"file", file.path.string()}, {"format", file.format}, {"file_bytes", file.bytes}};
  json["metadata"] = metadata;
  json["run"] = words.empty() ? Json(nullptr) : Json(words);
  json["verified"] = options.verify && file.has_checksums;
  json["summary"] = tree.sums_json();
  json["entries"] = entries;
  print_json(json);
}

CheckpointFile open(const InspectOptions& options, const std::string& path) {
  try {
    if (options.verify) {
      CheckpointFile file = open_checkpoint(path);
      if (file.has_checksums) checkpoint::verify(path);
      return file;
    }
    return open_checkpoint(path);
  } catch (const base::CheckpointError& error) {
    // As of diff(1): 1 is the answer no, 2 that there is no answer.
    if (options.check || !options.other.empty()) throw base::UsageError(error.what());
    throw;
  }
}

void run_inspect(const InspectOptions& options, int& exit_code) {
  const CheckpointFile file = open(options, options.file);
  if (!options.other.empty()) {
    const CheckpointFile other = open(options, options.other);
    const bool is_different = print_diff(
        file, other, {.json = options.json, .all = options.all, .values = !options.no_values});
    if (is_different) exit_code = kFailed;
    return;
  }
  const Tree tree(file, !options.no_values, options.all);
  if (options.json) {
    print_json(file, tree, options);
  } else {
    print_text(file, tree, options);
  }
  if (options.check && !tree.is_finite()) exit_code = kFailed;
}

}  // namespace

void setup_inspect(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<InspectOptions>();
  CLI::App* inspect = app.add_subcommand(
      "inspect", "What is in a .pt or safetensors file, and what differs between two");
  inspect->add_option("FILE", options->file, "The file, known by its content")->required();
  CLI::Option* diff = inspect->add_option(
      "--diff", options->other,
      "Compare FILE with this file instead; exit code 0: equal, 1: different, 2: not readable");
  inspect->add_flag("--json", options->json, "Print one JSON document, never shortened");
  inspect->add_flag("--all", options->all, "Print long lists in full (default: their beginning)");
  CLI::Option* no_values =
      inspect->add_flag("--no-values", options->no_values, "Do not read the data of tensors");
  inspect
      ->add_flag("--check", options->check,
                 "Exit code 1 when a tensor holds NaN or infinity, 2 when the file is not readable "
                 "(default: 0 and 1)")
      ->excludes(no_values)
      ->excludes(diff);
  inspect->add_flag("--verify", options->verify, "Compare all checksums in the file first");
  inspect->callback([options, &exit_code] { run_inspect(*options, exit_code); });
}

}  // namespace torchamp::cli
