#include "torchamp/checkpoint/rebuild.h"

#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>

#include "torchamp/base/words.h"
#include "torchamp/checkpoint/build_context.h"
#include "torchamp/checkpoint/dtype.h"
#include "torchamp/checkpoint/numpy.h"

namespace torchamp::checkpoint {
namespace {

using base::StateDict;
using base::Value;
using Kind = Node::Kind;

class Rebuilder {
 public:
  Rebuilder(size_t pickle_size, const Storages& storages)
      : context_(pickle_size), tensors_(context_, storages) {}

  Value value(const Node& node) {
    switch (node.kind) {
      case Kind::kNone:
        return {};
      case Kind::kBool:
        return node.integer != 0;
      case Kind::kInt:
        return node.integer;
      case Kind::kBigInt:
        context_.spend(node.text.size());
        return base::BigInt{std::string(node.text)};
      case Kind::kFloat:
        return node.real;
      case Kind::kString:
        context_.spend(node.text.size());
        return std::string(node.text);
      case Kind::kBytes:
        context_.spend(node.text.size());
        return base::Bytes{std::string(node.text)};
      case Kind::kList:
        return base::List{sequence(node.items)};
      case Kind::kTuple:
        return base::Tuple{sequence(node.items)};
      case Kind::kSet:
        return base::Set{sequence(node.items)};
      case Kind::kDict:
        return dict(node);
      case Kind::kGlobal:
        return dtype(node);
      case Kind::kCall:
        return call(node);
      case Kind::kStorage:
        break;
    }
    context_.fail_kind(node);
  }

  StateDict dict(const Node& node) {
    StateDict result;
    fill(result, node);
    return result;
  }

 private:
  // Sets what the dict `node` begins with, then its own items.
  void fill(StateDict& result, const Node& node) {
    if (node.state != nullptr) {
      context_.inside("items", [&] {
        if (node.state->kind == Kind::kDict) {
          fill(result, *node.state);
        } else {
          fill_with_pairs(result, *node.state);
        }
        return true;
      });
    }
    for (size_t i = 0; i + 1 < node.items.size(); i += 2) {
      set(result, *node.items[i], *node.items[i + 1]);
    }
  }

  void fill_with_pairs(StateDict& result, const Node& pairs) {
    const auto is_sequence = [](const Node& node) {
      return node.kind == Kind::kList || node.kind == Kind::kTuple;
    };
    if (!is_sequence(pairs)) {
      context_.fail_damaged("are " + base::with_article(kind_text(pairs)) +
                            "; a dict or a list of pairs is expected");
    }
    for (const Node* pair : pairs.items) {
      if (!is_sequence(*pair) || pair->items.size() != 2) {
        context_.fail_damaged("hold " + base::with_article(kind_text(*pair)) +
                              " that is no pair of a key and a value");
      }
      set(result, *pair->items[0], *pair->items[1]);
    }
  }

  void set(StateDict& result, const Node& key_node, const Node& value_node) {
    StateDict::Key key = this->key(key_node);
    context_.spend(sizeof(StateDict::Entry) + 2 * key_node.text.size());  // entries and their index
    Value item = context_.inside(base::to_string(key), [&] { return value(value_node); });
    result.set(std::move(key), std::move(item));
  }

  StateDict::Key key(const Node& node) {
    if (node.kind == Kind::kString) return std::string(node.text);
    if (node.kind == Kind::kInt) return node.integer;
    if (numpy::is_scalar(node)) {
      const Value held = numpy::scalar(context_, node);
      if (held.is<int64_t>()) return held.to_int();
      if (held.is<std::string>()) return held.to_string();
    }
    context_.fail("has a key that is " + base::with_article(kind_text(node)) +
                  "; str and int keys are accepted. Convert it in Python before saving.");
  }

  std::vector<Value> sequence(const std::vector<const Node*>& nodes) {
    context_.spend(sizeof(Value) * nodes.size());
    std::vector<Value> result;
    result.reserve(nodes.size());
    for (size_t i = 0; i < nodes.size(); ++i) {
      result.push_back(context_.inside(std::to_string(i), [&] { return value(*nodes[i]); }));
    }
    return result;
  }

  Value dtype(const Node& node) {
    constexpr std::string_view kTorch = "torch\n";
    if (node.text.starts_with(kTorch)) {
      const auto dtype = find_dtype_by_name(node.text.substr(kTorch.size()));
      if (dtype) return dtype->type;
    }
    context_.fail_kind(node);
  }

  Value call(const Node& node) {
    const std::string_view callee = node.items[0]->text;
    const std::vector<const Node*>& arguments = arguments_of(node);
    const auto is = [&](std::initializer_list<Kind> kinds) {
      if (arguments.size() != kinds.size()) return false;
      return std::equal(kinds.begin(), kinds.end(), arguments.begin(),
                        [](Kind kind, const Node* argument) { return argument->kind == kind; });
    };
    if (callee == "torch\nSize" && is({Kind::kTuple})) {
      return base::Tuple{sequence(arguments[0]->items)};
    }
    if (callee == "builtins\nset" || callee == "builtins\nfrozenset") {
      if (arguments.empty()) return base::Set{};
      if (is({Kind::kList}) || is({Kind::kTuple}) || is({Kind::kSet})) {
        return base::Set{sequence(arguments[0]->items)};
      }
    }
    if (callee == "builtins\ncomplex" && is({Kind::kFloat, Kind::kFloat})) {
      return c10::complex<double>(arguments[0]->real, arguments[1]->real);
    }
    if (callee == "_codecs\nencode" || callee == "builtins\nbytes" ||
        callee == "builtins\nbytearray") {
      return base::Bytes{bytes_of(context_, node, "is bytes made of")};
    }
    if (callee == "torch\ndevice" && (is({Kind::kString}) || is({Kind::kString, Kind::kInt}))) {
      return device(arguments);
    }
    if (numpy::is_scalar(node)) return numpy::scalar(context_, node);
    return tensors_.tensor(node);
  }

  // ('cuda', 0)
  at::Device device(const std::vector<const Node*>& arguments) {
    std::string text(arguments[0]->text.substr(0, 100));
    if (arguments.size() == 2) text += ":" + std::to_string(arguments[1]->integer);
    const auto fail = [&] {
      context_.fail("is the device '" + base::printable(text) +
                    "'; the devices that LibTorch names are accepted. Was the file damaged or "
                    "written by a newer version?");
    };
    try {
      const at::Device device(text);
      if (device.str() != text) fail();  // a number too large for an index gives another
      return device;
    } catch (const c10::Error&) {
      fail();
      throw;
    }
  }

  BuildContext context_;
  TensorBuilder tensors_;
};

}  // namespace

base::Value rebuild(const Node& root, size_t pickle_size, const Storages& storages) {
  return Rebuilder(pickle_size, storages).value(root);
}

StateDict rebuild_dict(const Node& root, size_t pickle_size, const Storages& storages) {
  if (root.kind == Kind::kDict) return Rebuilder(pickle_size, storages).dict(root);
  const Value value = rebuild(root, pickle_size, storages);
  throw FormatError("the file holds " + base::with_article(value.type_name()) +
                    "; a dict is expected. Save {'name': value} in Python.");
}

}  // namespace torchamp::checkpoint
