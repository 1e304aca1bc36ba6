#include "torchamp/checkpoint/rebuild.h"

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/ScalarTypeToTypeMeta.h>
#include <c10/core/Storage.h>
#include <c10/core/TensorImpl.h>

#include "torchamp/checkpoint/dtype.h"
#include "torchamp/checkpoint/format_error.h"

namespace torchamp::checkpoint {
namespace {

using base::StateDict;
using base::Value;
using Kind = Node::Kind;

// "module\nname" as Python prints it.
std::string dotted(std::string_view global) {
  std::string text(global.substr(0, 200));
  std::replace(text.begin(), text.end(), '\n', '.');
  constexpr std::string_view kBuiltins = "__builtin__.";  // Python 2's name, which protocol 2 keeps
  return base::printable(text.rfind(kBuiltins, 0) == 0 ? text.substr(kBuiltins.size()) : text);
}

std::string kind_text(const Node& node) {
  switch (node.kind) {
    case Kind::kNone:
      return "None";
    case Kind::kBool:
      return "bool";
    case Kind::kInt:
      return "int";
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
    case Kind::kStorage:
      return "storage";
    case Kind::kCall:
      return dotted(node.items[0]->text);
  }
  return "value";
}

std::string a(const std::string& noun) {
  const bool is_vowel = std::string_view("aeiou").find(noun[0]) != std::string_view::npos;
  return (is_vowel ? "an " : "a ") + noun;
}

class Rebuilder {
 public:
  Rebuilder(size_t pickle_size, const Storages& storages)
      : storages_(storages), budget_(kFreeBytes + kBytesPerPickleByte * pickle_size) {}

  Value root(const Node& node) { return value(node); }

 private:
  // What a pickle without tricks becomes in memory is below 100 times its size: two bytes recall a
  // key, which costs an entry and two copies of its text. More says that it multiplies itself.
  static constexpr size_t kBytesPerPickleByte = 256;
  static constexpr size_t kFreeBytes = size_t{16} << 20;

  [[noreturn]] void fail(const std::string& text) const {
    std::string where = "the file's value ";
    if (!path_.empty()) {
      where = "entry ";
      for (const std::string& key : path_) where += "[" + key + "]";
      where += ' ';
    }
    throw FormatError(where + text);
  }

  [[noreturn]] void fail_kind(const Node& node) const {
    fail("is " + a(kind_text(node)) +
         "; None, bool, int, float, str, list, tuple, dict and tensors are accepted. Convert it in "
         "Python before saving.");
  }

  void spend(size_t bytes) {
    if (bytes > budget_) {
      fail(
          "makes the tree far larger than the pickle it comes from; values that do not repeat "
          "each other are expected. Was the file made to exhaust memory?");
    }
    budget_ -= bytes;
  }

  template <typename Visit>
  auto inside(std::string key, Visit visit) {
    if (path_.size() >= static_cast<size_t>(kMaxDepth)) {
      path_.resize(3);
      fail("... is nested more than " + std::to_string(kMaxDepth) +
           " deep, or holds itself; a tree is expected. Was the file damaged?");
    }
    path_.push_back(std::move(key));
    auto result = visit();
    path_.pop_back();
    return result;
  }

  StateDict dict(const Node& node) {
    StateDict result;
    for (size_t i = 0; i + 1 < node.items.size(); i += 2) {
      const Node& key = *node.items[i];
      StateDict::Key name;
      if (key.kind == Kind::kString) {
        name = std::string(key.text);
      } else if (key.kind == Kind::kInt) {
        name = key.integer;
      } else {
        fail("has a key that is " + a(kind_text(key)) +
             "; str and int keys are accepted. Convert it in Python before saving.");
      }
      spend(sizeof(StateDict::Entry) + 2 * key.text.size());  // entries and their index
      std::string shown = base::to_string(name);
      Value item = inside(std::move(shown), [&] { return value(*node.items[i + 1]); });
      result.set(std::move(name), std::move(item));
    }
    return result;
  }

  std::vector<Value> sequence(const std::vector<const Node*>& nodes) {
    spend(sizeof(Value) * nodes.size());
    std::vector<Value> result;
    result.reserve(nodes.size());
    for (size_t i = 0; i < nodes.size(); ++i) {
      result.push_back(inside(std::to_string(i), [&] { return value(*nodes[i]); }));
    }
    return result;
  }

  Value value(const Node& node) {
    switch (node.kind) {
      case Kind::kNone:
        return {};
      case Kind::kBool:
        return node.integer != 0;
      case Kind::kInt:
        return node.integer;
      case Kind::kBigInt:
        spend(node.text.size());
        return base::BigInt{std::string(node.text)};
      case Kind::kFloat:
        return node.real;
      case Kind::kString:
        spend(node.text.size());
        return std::string(node.text);
      case Kind::kList:
        return base::List{sequence(node.items)};
      case Kind::kTuple:
        return base::Tuple{sequence(node.items)};
      case Kind::kDict:
        return dict(node);
      case Kind::kCall:
        if (node.items[0]->text == "torch\nSize" && node.items[1]->items.size() == 1 &&
            node.items[1]->items[0]->kind == Kind::kTuple) {
          return value(*node.items[1]->items[0]);
        }
        return tensor(node);
      default:
        fail_kind(node);
    }
  }

  // Tensors. The same object in Python is the same tensor here.
  at::Tensor tensor(const Node& call) {
    if (const auto it = tensors_.find(&call); it != tensors_.end()) return it->second;
    const std::string_view callee = call.items[0]->text;
    const std::vector<const Node*>& arguments = call.items[1]->items;
    at::Tensor result;
    if (callee == "torch._utils\n_rebuild_tensor_v2" || callee == "torch._utils\n_rebuild_tensor") {
      result = strided(arguments, nullptr, arguments.size() > 6 ? arguments[6] : nullptr);
    } else if (callee == "torch._utils\n_rebuild_tensor_v3" && arguments.size() >= 7) {
      result = strided(arguments, arguments[6], arguments.size() > 7 ? arguments[7] : nullptr);
    } else if ((callee == "torch._utils\n_rebuild_parameter" ||
                callee == "torch._utils\n_rebuild_parameter_with_state") &&
               !arguments.empty() && arguments[0]->kind == Kind::kCall) {
      result = inside("data", [&] { return tensor(*arguments[0]); });
    } else if (callee == "torch._tensor\n_rebuild_from_type_v2" && arguments.size() == 4 &&
               arguments[0]->kind == Kind::kGlobal && arguments[2]->kind == Kind::kTuple) {
      // A tensor with attributes or of a subclass: (function, class, arguments, state).
      const Node inner{
          .kind = Kind::kCall, .integer = 0, .text = {}, .items = {arguments[0], arguments[2]}};
      result = inside("data", [&] { return uncached(inner); });
    } else {
      fail_kind(call);
    }
    tensors_.emplace(&call, result);
    return result;
  }

  // `call` does not outlive this call, so its address must not be remembered.
  at::Tensor uncached(const Node& call) {
    at::Tensor result = tensor(call);
    tensors_.erase(&call);
    return result;
  }

  std::vector<int64_t> integers(const Node& node, const char* what) const {
    const Node* tuple = &node;
    if (node.kind == Kind::kCall && node.items[0]->text == "torch\nSize" &&
        node.items[1]->items.size() == 1) {
      tuple = node.items[1]->items[0];
    }
    constexpr size_t kMaxDims = 64;  // LibTorch's own limit
    std::vector<int64_t> result;
    if (tuple->kind != Kind::kTuple || tuple->items.size() > kMaxDims) {
      fail(std::string("is a tensor whose ") + what + " is not a tuple of at most 64 ints." +
           kDamaged);
    }
    for (const Node* item : tuple->items) {
      if (item->kind != Kind::kInt || item->integer < 0) {
        fail(std::string("is a tensor whose ") + what + " holds " +
             (item->kind == Kind::kInt ? std::to_string(item->integer) : kind_text(*item)) +
             "; ints from 0 are expected." + kDamaged);
      }
      result.push_back(item->integer);
    }
    return result;
  }

  // (storage, offset, size, stride, ...); `dtype_node` where the storage has no dtype.
  at::Tensor strided(const std::vector<const Node*>& arguments, const Node* dtype_node,
                     const Node* metadata) {
    if (arguments.size() < 4 || arguments[0]->kind != Kind::kStorage ||
        arguments[1]->kind != Kind::kInt || arguments[1]->integer < 0) {
      fail(std::string("is a tensor without storage, offset, size and stride.") + kDamaged);
    }
    std::optional<SavedDtype> dtype;
    const auto [storage, num_bytes] = this->storage(*arguments[0], dtype);
    if (dtype_node != nullptr) {
      constexpr std::string_view kTorch = "torch\n";
      dtype.reset();
      if (dtype_node->kind == Kind::kGlobal && dtype_node->text.substr(0, 6) == kTorch) {
        dtype = find_dtype_by_name(dtype_node->text.substr(6));
      }
    }
    if (!dtype) {
      fail("is a tensor of a dtype that is not known here" +
           (dtype_node != nullptr ? ", " + kind_text(*dtype_node) : std::string()) +
           "; the dtypes that torch.save writes are accepted. Convert it in Python before saving.");
    }

    const int64_t offset = arguments[1]->integer;
    const std::vector<int64_t> sizes = integers(*arguments[2], "size");
    const std::vector<int64_t> strides = integers(*arguments[3], "stride");
    const auto item_bytes = static_cast<int64_t>(c10::elementSize(dtype->type));
    const int64_t available = static_cast<int64_t>(num_bytes) / item_bytes;
    check_bounds(offset, sizes, strides, item_bytes, available);

    at::Tensor result = at::detail::make_tensor<at::TensorImpl>(
        at::Storage(storage), at::DispatchKeySet(at::DispatchKey::CPU),
        c10::scalarTypeToTypeMeta(dtype->type));
    result.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, offset);
    spend(sizeof(at::TensorImpl));
    if (metadata != nullptr && metadata->kind == Kind::kDict) {
      for (size_t i = 0; i + 1 < metadata->items.size(); i += 2) {
        const bool is_set = metadata->items[i + 1]->integer != 0;
        if (metadata->items[i]->text == "conj" && result.is_complex()) result._set_conj(is_set);
        if (metadata->items[i]->text == "neg") result._set_neg(is_set);
      }
    }
    return result;
  }

  void check_bounds(int64_t offset, const std::vector<int64_t>& sizes,
                    const std::vector<int64_t>& strides, int64_t item_bytes,
                    int64_t available) const {
    if (sizes.size() != strides.size()) {
      fail("is a tensor of " + std::to_string(sizes.size()) + " sizes and " +
           std::to_string(strides.size()) + " strides; as many of each are expected." + kDamaged);
    }
    bool is_representable = true;
    bool is_empty = false;
    int64_t total_bytes = item_bytes;
    int64_t last = offset;
    for (size_t i = 0; i < sizes.size(); ++i) {
      int64_t reach = 0;
      is_empty = is_empty || sizes[i] == 0;
      const int64_t steps = std::max<int64_t>(sizes[i], 1);
      is_representable = is_representable &&
                         !__builtin_mul_overflow(total_bytes, steps, &total_bytes) &&
                         !__builtin_mul_overflow(steps - 1, strides[i], &reach) &&
                         !__builtin_add_overflow(last, reach, &last);
    }
    if (!is_representable || (!is_empty && last >= available)) {
      fail("is a tensor that reaches " +
           (is_representable ? "element " + std::to_string(last) : "beyond all memory") +
           " of a storage of " + std::to_string(available) +
           "; only elements inside the storage are accepted." + kDamaged);
    }
  }

  // The bytes a persistent id stands for, and how many of them it claims.
  std::pair<at::Storage, uint64_t> storage(const Node& node, std::optional<SavedDtype>& dtype) {
    const Node& id = *node.items[0];
    const auto is = [&](size_t i, Kind kind) { return id.items[i]->kind == kind; };
    const bool is_id = id.kind == Kind::kTuple && id.items.size() == 5 && is(0, Kind::kString) &&
                       id.items[0]->text == "storage" && is(1, Kind::kGlobal) &&
                       is(2, Kind::kString) && is(3, Kind::kString) && is(4, Kind::kInt) &&
                       id.items[4]->integer >= 0;
    if (!is_id) {
      fail(std::string("is a tensor whose storage is not ('storage', class, key, location, "
                       "length).") +
           kDamaged);
    }
    const std::string_view storage_class = id.items[1]->text;
    int64_t item_bytes = 1;
    if (storage_class != "torch.storage\nUntypedStorage") {
      if (storage_class.substr(0, 6) == "torch\n") {
        dtype = find_dtype_by_storage(storage_class.substr(6));
      }
      if (!dtype) {
        fail("is a tensor over a " + dotted(storage_class) +
             "; the storages of dense tensors are accepted. Is it quantized? dequantize() it "
             "before saving.");
      }
      item_bytes = static_cast<int64_t>(c10::elementSize(dtype->type));
    }
    const std::string key(id.items[2]->text);
    auto it = known_storages_.find(key);
    if (it == known_storages_.end()) {
      Extent extent = storages_.find(key);
      at::Storage bytes = storages_.reader.storage(extent, dtype ? item_bytes : kMostItemBytes);
      it = known_storages_.emplace(key, std::pair(std::move(bytes), std::move(extent))).first;
    }
    const Extent& extent = it->second.second;
    int64_t claimed = 0;
    if (__builtin_mul_overflow(id.items[4]->integer, item_bytes, &claimed) ||
        static_cast<uint64_t>(claimed) > extent.size) {
      fail("is a tensor whose storage claims " + std::to_string(id.items[4]->integer) +
           " elements; " + extent.name + " holds " + std::to_string(extent.size) + " bytes." +
           kDamaged);
    }
    return {it->second.first, static_cast<uint64_t>(claimed)};
  }

  static constexpr size_t kMostItemBytes = 16;  // complex128
  static constexpr const char* kDamaged = " Was the file damaged?";

  const Storages& storages_;
  size_t budget_;
  std::vector<std::string> path_;
  std::unordered_map<const Node*, at::Tensor> tensors_;
  std::unordered_map<std::string, std::pair<at::Storage, Extent>> known_storages_;
};

}  // namespace

base::Value rebuild(const Node& root, size_t pickle_size, const Storages& storages) {
  return Rebuilder(pickle_size, storages).root(root);
}

}  // namespace torchamp::checkpoint
