#include "torchamp/checkpoint/build_context.h"

#include <algorithm>

#include "torchamp/base/state_dict.h"
#include "torchamp/base/words.h"

namespace torchamp::checkpoint {

using Kind = Node::Kind;

std::string dotted(std::string_view global) {
  std::string text(global.substr(0, 200));
  std::replace(text.begin(), text.end(), '\n', '.');
  constexpr std::string_view kBuiltins = "builtins.";
  return base::printable(text.starts_with(kBuiltins) ? text.substr(kBuiltins.size()) : text);
}

std::string kind_text(const Node& node) {
  switch (node.kind) {
    case Kind::kNone:
      return "None";
    case Kind::kBool:
      return "bool";
    case Kind::kInt:
    case Kind::kBigInt:
      return "int";
    case Kind::kFloat:
      return "float";
    case Kind::kString:
      return "str";
    case Kind::kBytes:
      return "bytes";
    case Kind::kList:
      return "list";
    case Kind::kTuple:
      return "tuple";
    case Kind::kDict:
      return "dict";
    case Kind::kSet:
      return "set";
    case Kind::kGlobal:
      return dotted(node.text);
    case Kind::kStorage: {  // ('storage', class, ...)
      const Node& id = *node.items[0];
      const bool is_named = id.items.size() > 1 && id.items[1]->kind == Kind::kGlobal;
      return is_named ? dotted(id.items[1]->text) : "storage";
    }
    case Kind::kCall:
      // As Python writes bytes before protocol 3.
      return is_call(node, "_codecs\nencode") ? "bytes" : dotted(node.items[0]->text);
  }
  return "value";
}

void BuildContext::fail(const std::string& text) const {
  std::string where = "the file's value ";
  if (!path_.empty()) {
    where = "entry ";
    for (const std::string& key : path_) where += "[" + key + "]";
    where += ' ';
  }
  throw FormatError(where + text);
}

void BuildContext::fail_damaged(const std::string& text) const {
  fail(text + ". Was the file damaged?");
}

void BuildContext::fail_kind(const Node& node) const {
  fail("is " + base::with_article(kind_text(node)) +
       "; None, bool, int, float, complex, str, bytes, list, tuple, set, dict, dtypes, devices, "
       "numpy's numbers and tensors are accepted. Convert it in Python before saving.");
}

void BuildContext::fail_depth() {
  path_.resize(3);
  fail("... is nested more than " + std::to_string(kMaxDepth) +
       " deep, or holds itself; a tree is expected. Was the file damaged?");
}

void BuildContext::spend(size_t bytes) {
  if (bytes > budget_) {
    fail(
        "makes the tree far larger than the pickle it comes from; values that do not repeat each "
        "other are expected. Was the file made to exhaust memory?");
  }
  budget_ -= bytes;
}

}  // namespace torchamp::checkpoint
