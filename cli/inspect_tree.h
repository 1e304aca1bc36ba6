#pragma once
// What is in a file, as the rows of a tree and their sums. How they are printed is not its
// business.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include <nlohmann/json.hpp>

#include "cli/checkpoint_file.h"
#include "cli/finiteness.h"
#include "torchamp/base/state_dict.h"

namespace torchamp::cli {

/// One line of the tree.
struct Row {
  static constexpr size_t kNoParent = SIZE_MAX;

  base::StateDict::Key key;
  size_t parent =
      kNoParent;  // the row of what holds it; its own path would cost depth times as much
  size_t depth = 0;
  std::string label;
  std::string words;
  const base::Value* value = nullptr;
  size_t num_more = 0;  // no entry: so many were left out here
  bool is_shown = true;
  bool is_inline = false;        // a container shown as a value, without rows of its own
  std::optional<size_t> shares;  // the row of the first tensor over the same storage
  std::optional<Finiteness> values;
};

/// The items of a list or a tuple; nullptr for all else.
const std::vector<base::Value>* items_of(const base::Value& value);

/// The rows of a file, and its sums. Points into the file's values.
class Tree {
 public:
  /// `with_values`: the data of tensors is read; `all`: no row is left out.
  Tree(const CheckpointFile& file, bool with_values, bool all);

  const std::vector<Row>& rows() const { return rows_; }
  bool has_tensors() const { return num_tensors_ > 0; }
  bool is_finite() const { return not_finite_.empty(); }
  /// The names of tensors that hold a NaN or an infinity.
  std::vector<std::string> not_finite() const;

  /// The keys from the root to a row; none for the row of a file that is no dict.
  std::vector<nlohmann::ordered_json> path_of(size_t index) const;
  /// The same for a reader: dotted, on one line.
  std::string name_of(size_t index) const;

  /// "3 tensors, 40 elements, 160 bytes (float32 160 bytes)".
  std::string sums() const;
  nlohmann::ordered_json sums_json() const;

 private:
  void add_entries(const base::StateDict& dict, size_t parent, bool is_shown);
  void add_items(const std::vector<base::Value>& items, size_t parent, bool is_shown);
  void add_more(size_t count, size_t parent, bool is_shown);
  Row& add_row(const base::StateDict::Key& key, size_t parent, bool is_shown);
  void add(const base::StateDict::Key& key, const base::Value& value, size_t parent, bool is_shown);
  void count(const at::Tensor& tensor, size_t index);
  void look_at_values();
  size_t most_shown(size_t size, size_t most) const;

  bool with_values_;
  bool all_;
  bool has_root_row_ = false;
  std::vector<Row> rows_;
  std::unordered_map<const c10::StorageImpl*, size_t> first_rows_;
  std::map<std::string, uint64_t> bytes_by_dtype_;
  std::vector<size_t> not_finite_;  // rows
  uint64_t num_tensors_ = 0;
  uint64_t num_elements_ = 0;
  uint64_t num_bytes_ = 0;
};

}  // namespace torchamp::cli
