#include "cli/inspect_tree.h"

#include <algorithm>
#include <utility>

#include <torch/torch.h>

#include "cli/inspect_words.h"
#include "torchamp/base/words.h"

namespace torchamp::cli {
namespace {

using base::StateDict;
using base::Value;
using Json = nlohmann::ordered_json;

constexpr const char* kRootName = "(value)";  // of a file that is no dict

bool is_plain(const Value& value) {
  return !value.is<at::Tensor>() && !value.is<StateDict>() && items_of(value) == nullptr;
}

}  // namespace

const std::vector<Value>* items_of(const Value& value) {
  if (value.is<base::List>() || value.is<base::Tuple>()) return &value.to_items();
  return nullptr;
}

Tree::Tree(const CheckpointFile& file, bool with_values, bool all)
    : with_values_(with_values), all_(all) {
  const auto* root = std::get_if<StateDict>(&file.root.storage());
  if (root != nullptr) {
    add_entries(*root, Row::kNoParent, true);
  } else {
    has_root_row_ = true;
    add("", file.root, Row::kNoParent, true);
    rows_.front().label = kRootName;
  }
  if (with_values) look_at_values();
}

std::vector<std::string> Tree::not_finite() const {
  std::vector<std::string> names;
  for (const size_t index : not_finite_) names.push_back(name_of(index));
  return names;
}

std::vector<Json> Tree::path_of(size_t index) const {
  std::vector<Json> path;
  const size_t root = has_root_row_ ? 0 : Row::kNoParent;
  for (; index != root && index != Row::kNoParent; index = rows_[index].parent) {
    const StateDict::Key& key = rows_[index].key;
    const auto* name = std::get_if<std::string>(&key);
    path.push_back(name != nullptr ? Json(*name) : Json(std::get<int64_t>(key)));
  }
  std::reverse(path.begin(), path.end());
  return path;
}

std::string Tree::name_of(size_t index) const {
  std::string name;
  for (const Json& key : path_of(index)) {
    name += (name.empty() ? "" : ".") +
            (key.is_string() ? base::printable(key.get<std::string>()) : key.dump());
  }
  return has_root_row_ && index == 0 ? kRootName : name;
}

std::string Tree::sums() const {
  if (num_tensors_ == 0) return "no tensors";
  std::string text = base::counted(num_tensors_, "tensor") + ", " +
                     base::counted(num_elements_, "element") + ", " + bytes_text(num_bytes_);
  const char* separator = " (";
  for (const auto& [dtype, bytes] : bytes_by_dtype_) {
    text += separator + dtype + " " + bytes_text(bytes);
    separator = ", ";
  }
  return text + ")";
}

Json Tree::sums_json() const {
  Json json = {{"tensors", num_tensors_}, {"elements", num_elements_}, {"bytes", num_bytes_}};
  json["bytes_by_dtype"] = bytes_by_dtype_;
  json["all_finite"] = with_values_ ? Json(not_finite_.empty()) : Json(nullptr);
  json["not_finite"] = not_finite();
  return json;
}

void Tree::add_entries(const StateDict& dict, size_t parent, bool is_shown) {
  // Enough for the weights of a small network; dicts by number are an optimizer's state.
  const bool is_by_number =
      !dict.empty() && std::holds_alternative<int64_t>(dict.entries().front().key);
  const size_t most = most_shown(dict.size(), is_by_number ? 3 : 40);
  size_t i = 0;
  for (const auto& [key, value] : dict.entries()) {
    if (i++ == most) add_more(dict.size() - most, parent, is_shown);
    add(key, value, parent, is_shown && i <= most);
  }
}

void Tree::add_items(const std::vector<Value>& items, size_t parent, bool is_shown) {
  const size_t most = most_shown(items.size(), 5);
  for (size_t i = 0; i < items.size(); ++i) {
    if (i == most) add_more(items.size() - most, parent, is_shown);
    add(static_cast<int64_t>(i), items[i], parent, is_shown && i < most);
  }
}

// To leave out one or two would not shorten anything.
size_t Tree::most_shown(size_t size, size_t most) const {
  return all_ || size <= most + 2 ? size : most;
}

void Tree::add_more(size_t count, size_t parent, bool is_shown) {
  Row& row = add_row({}, parent, is_shown);
  row.num_more = count;
}

Row& Tree::add_row(const StateDict::Key& key, size_t parent, bool is_shown) {
  const size_t depth = parent == Row::kNoParent ? 1 : rows_[parent].depth + 1;
  Row& row = rows_.emplace_back();
  row.key = key;
  row.parent = parent;
  row.depth = depth;
  row.is_shown = is_shown;
  return row;
}

void Tree::add(const StateDict::Key& key, const Value& value, size_t parent, bool is_shown) {
  const size_t index = rows_.size();
  Row& row = add_row(key, parent, is_shown);
  const auto* name = std::get_if<std::string>(&key);
  row.label = name != nullptr ? base::printable(*name) : std::to_string(std::get<int64_t>(key));
  row.words = words_for(key, value);
  row.value = &value;
  const std::vector<Value>* items = items_of(value);
  row.is_inline = items != nullptr && std::all_of(items->begin(), items->end(), is_plain);
  if (const auto* tensor = std::get_if<at::Tensor>(&value.storage())) count(*tensor, index);
  const bool is_inline = row.is_inline;  // row is gone when rows are added
  if (const auto* dict = std::get_if<StateDict>(&value.storage())) {
    add_entries(*dict, index, is_shown);
  } else if (items != nullptr && !is_inline) {
    add_items(*items, index, is_shown);
  }
}

void Tree::count(const at::Tensor& tensor, size_t index) {
  Row& row = rows_[index];
  ++num_tensors_;
  const auto [first, is_new] =
      first_rows_.try_emplace(tensor.storage().unsafeGetStorageImpl(), index);
  if (is_new) {
    num_bytes_ += tensor.storage().nbytes();
    bytes_by_dtype_[base::dtype_name(tensor.scalar_type())] += tensor.storage().nbytes();
    num_elements_ += tensor.storage().nbytes() / tensor.element_size();
  } else {
    row.shares = first->second;
  }
}

void Tree::look_at_values() {
  std::vector<size_t> rows;
  std::vector<at::Tensor> tensors;
  for (size_t i = 0; i < rows_.size(); ++i) {
    if (rows_[i].value == nullptr) continue;
    const auto* tensor = std::get_if<at::Tensor>(&rows_[i].value->storage());
    if (tensor == nullptr || !(tensor->is_floating_point() || tensor->is_complex())) continue;
    rows.push_back(i);
    tensors.push_back(*tensor);
  }
  const std::vector<Finiteness> found = finiteness(tensors);
  for (size_t i = 0; i < rows.size(); ++i) {
    rows_[rows[i]].values = found[i];
    if (!found[i].is_finite()) not_finite_.push_back(rows[i]);
  }
}

}  // namespace torchamp::cli
