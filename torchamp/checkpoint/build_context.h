#pragma once
// BuildContext: where in the tree the rebuilding is, what memory it may still use, and how it
// fails. What nodes mean is told by rebuild.cpp, tensor_builder.cpp and numpy.cpp.

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "torchamp/checkpoint/format_error.h"
#include "torchamp/checkpoint/unpickler.h"

namespace torchamp::checkpoint {

class BuildContext {
 public:
  explicit BuildContext(size_t pickle_size)
      : budget_(kFreeBytes + kBytesPerPickleByte * pickle_size) {}

  /// FormatError "entry ['a'][0] " + text.
  [[noreturn]] void fail(const std::string& text) const;
  /// As fail(), ending with the question whether the file was damaged.
  [[noreturn]] void fail_damaged(const std::string& text) const;
  /// As fail(): `node` is of a kind that no value has.
  [[noreturn]] void fail_kind(const Node& node) const;

  /// Takes `bytes` from what the tree may use; fails when it uses too much.
  void spend(size_t bytes);

  /// What `visit` gives for the entry `key` of where the context is.
  template <typename Visit>
  auto inside(std::string key, Visit visit) {
    if (path_.size() >= static_cast<size_t>(kMaxDepth)) fail_depth();
    path_.push_back(std::move(key));
    auto result = visit();
    path_.pop_back();
    return result;
  }

 private:
  // What a pickle without tricks becomes in memory is below 100 times its size: two bytes recall a
  // key, which costs an entry and two copies of its text. More says that it multiplies itself.
  static constexpr size_t kBytesPerPickleByte = 256;
  static constexpr size_t kFreeBytes = size_t{16} << 20;

  [[noreturn]] void fail_depth();

  size_t budget_;
  std::vector<std::string> path_;
};

/// "module\nname" as Python prints it.
std::string dotted(std::string_view global);

/// Python's name of what `node` stands for: int, collections.deque.
std::string kind_text(const Node& node);

/// Whether `node` is a call of `global`, "module\nname".
inline bool is_call(const Node& node, std::string_view global) {
  return node.kind == Node::Kind::kCall && node.items[0]->text == global;
}

/// The arguments of a call.
inline const std::vector<const Node*>& arguments_of(const Node& call) {
  return call.items[1]->items;
}

}  // namespace torchamp::checkpoint
