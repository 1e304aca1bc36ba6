#include "torchamp/checkpoint/tensor_builder.h"

#include <algorithm>
#include <string_view>

#include <c10/core/DispatchKeySet.h>
#include <c10/core/ScalarTypeToTypeMeta.h>
#include <c10/core/TensorImpl.h>

#include "torchamp/checkpoint/dtype.h"
#include "torchamp/checkpoint/numpy.h"

namespace torchamp::checkpoint {

using Kind = Node::Kind;

at::Tensor TensorBuilder::tensor(const Node& call) {
  if (const auto it = tensors_.find(&call); it != tensors_.end()) return it->second;
  at::Tensor result = numpy::is_array(call) ? numpy::array(context_, call)
                                            : build(*call.items[0], *call.items[1], call);
  tensors_.emplace(&call, result);
  return result;
}

at::Tensor TensorBuilder::build(const Node& callee, const Node& arguments_node, const Node& call) {
  const std::string_view name = callee.text;
  const std::vector<const Node*>& arguments = arguments_node.items;
  const auto argument = [&](size_t i) { return arguments.size() > i ? arguments[i] : nullptr; };
  if (name == "torch._utils\n_rebuild_tensor_v2" || name == "torch._utils\n_rebuild_tensor") {
    return strided(arguments, nullptr, argument(6));
  }
  if (name == "torch._utils\n_rebuild_tensor_v3" && arguments.size() >= 7) {
    return strided(arguments, arguments[6], argument(7));
  }
  const bool is_parameter = name == "torch._utils\n_rebuild_parameter" ||
                            name == "torch._utils\n_rebuild_parameter_with_state";
  if (is_parameter && !arguments.empty() && arguments[0]->kind == Kind::kCall) {
    return context_.inside("data", [&] { return tensor(*arguments[0]); });
  }
  // A tensor with attributes or of a subclass: (function, class, arguments, state).
  if (name == "torch._tensor\n_rebuild_from_type_v2" && arguments.size() == 4 &&
      arguments[0]->kind == Kind::kGlobal && arguments[2]->kind == Kind::kTuple) {
    return context_.inside("data", [&] { return build(*arguments[0], *arguments[2], call); });
  }
  Node named = call;
  named.items[0] = &callee;
  context_.fail_kind(named);
}

std::vector<int64_t> TensorBuilder::integers(const Node& node, const char* what) const {
  const Node* tuple = &node;
  if (is_call(node, "torch\nSize") && arguments_of(node).size() == 1) tuple = arguments_of(node)[0];
  constexpr size_t kMaxDims = 64;  // LibTorch's own limit
  std::vector<int64_t> result;
  if (tuple->kind != Kind::kTuple || tuple->items.size() > kMaxDims) {
    context_.fail_damaged(std::string("is a tensor whose ") + what +
                          " is not a tuple of at most 64 ints");
  }
  for (const Node* item : tuple->items) {
    if (item->kind != Kind::kInt || item->integer < 0) {
      context_.fail_damaged(
          std::string("is a tensor whose ") + what + " holds " +
          (item->kind == Kind::kInt ? std::to_string(item->integer) : kind_text(*item)) +
          "; ints from 0 are expected");
    }
    result.push_back(item->integer);
  }
  return result;
}

// (storage, offset, size, stride, ...); `dtype_node` where the storage has no dtype.
at::Tensor TensorBuilder::strided(const std::vector<const Node*>& arguments, const Node* dtype_node,
                                  const Node* metadata) {
  if (arguments.size() < 4 || arguments[0]->kind != Kind::kStorage ||
      arguments[1]->kind != Kind::kInt || arguments[1]->integer < 0) {
    context_.fail_damaged("is a tensor without storage, offset, size and stride");
  }
  const StorageId id = storage_id(*arguments[0]);
  std::optional<SavedDtype> dtype = id.dtype;
  if (dtype_node != nullptr) {
    constexpr std::string_view kTorch = "torch\n";
    dtype.reset();
    if (dtype_node->kind == Kind::kGlobal && dtype_node->text.starts_with(kTorch)) {
      dtype = find_dtype_by_name(dtype_node->text.substr(kTorch.size()));
    }
  }
  if (!dtype) {
    context_.fail(
        "is a tensor of a dtype that is not known here" +
        (dtype_node != nullptr ? ", " + kind_text(*dtype_node) : std::string()) +
        "; the dtypes that torch.save writes are accepted. Convert it in Python before saving.");
  }
  const at::Storage& bytes = storage(id);

  const std::vector<int64_t> sizes = integers(*arguments[2], "size");
  const std::vector<int64_t> strides = integers(*arguments[3], "stride");
  const auto item_bytes = static_cast<int64_t>(c10::elementSize(dtype->type));
  // Neither product overflows: storage() has seen that all these items lie in the file.
  const int64_t available = id.view_length.value_or(id.length) * id.item_bytes / item_bytes;
  const int64_t view_start = id.view_offset * id.item_bytes / item_bytes;
  int64_t offset = arguments[1]->integer;
  check_bounds(offset, sizes, strides, item_bytes, available);
  if (__builtin_add_overflow(offset, view_start, &offset)) {  // of an empty tensor
    context_.fail_damaged("is a tensor that starts beyond all memory");
  }

  at::Tensor result = at::detail::make_tensor<at::TensorImpl>(
      at::Storage(bytes), at::DispatchKeySet(at::DispatchKey::CPU),
      c10::scalarTypeToTypeMeta(dtype->type));
  result.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, offset);
  context_.spend(sizeof(at::TensorImpl));
  if (metadata != nullptr && metadata->kind == Kind::kDict) {
    for (size_t i = 0; i + 1 < metadata->items.size(); i += 2) {
      const bool is_set = metadata->items[i + 1]->integer != 0;
      if (metadata->items[i]->text == "conj" && result.is_complex()) result._set_conj(is_set);
      if (metadata->items[i]->text == "neg") result._set_neg(is_set);
    }
  }
  return result;
}

void TensorBuilder::check_bounds(int64_t offset, const std::vector<int64_t>& sizes,
                                 const std::vector<int64_t>& strides, int64_t item_bytes,
                                 int64_t available) const {
  if (sizes.size() != strides.size()) {
    context_.fail_damaged("is a tensor of " + std::to_string(sizes.size()) + " sizes and " +
                          std::to_string(strides.size()) +
                          " strides; as many of each are expected");
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
  // An empty tensor may stand at the end of its storage, or past it.
  if (!is_representable || (!is_empty && last >= available)) {
    context_.fail_damaged(
        "is a tensor that reaches " +
        (is_representable ? "element " + std::to_string(last) : "beyond all memory") +
        " of a storage of " + std::to_string(available) +
        "; only elements inside the storage are accepted");
  }
}

StorageId TensorBuilder::storage_id(const Node& node) const {
  const std::optional<StorageId> id = parse_storage_id(node);
  if (!id) {
    context_.fail_damaged(
        "is a tensor whose storage is not ('storage', class, key, location, length)");
  }
  if (!id->is_known()) {
    context_.fail("is a tensor over a " + dotted(id->storage_class) +
                  "; the storages of dense tensors are accepted. Is it quantized? dequantize() it "
                  "before saving.");
  }
  return *id;
}

// The bytes an id stands for, which hold as many items as it claims.
const at::Storage& TensorBuilder::storage(const StorageId& id) {
  auto it = known_storages_.find(id.key);
  if (it == known_storages_.end()) {
    constexpr int64_t kMostItemBytes = 16;  // complex128
    Extent extent = storages_.find(id.key);
    at::Storage bytes = storages_.reader.storage(
        extent, static_cast<size_t>(id.is_untyped ? kMostItemBytes : id.item_bytes));
    it = known_storages_.emplace(id.key, std::pair(std::move(bytes), std::move(extent))).first;
  }
  const auto& [bytes, extent] = it->second;
  int64_t claimed = 0;
  if (__builtin_mul_overflow(id.length, id.item_bytes, &claimed) ||
      static_cast<uint64_t>(claimed) > extent.size) {
    context_.fail_damaged("is a tensor whose storage claims " + std::to_string(id.length) +
                          " elements; " + extent.name + " holds " + std::to_string(extent.size) +
                          " bytes");
  }
  if (id.view_length &&
      (id.view_offset > id.length || *id.view_length > id.length - id.view_offset)) {
    context_.fail_damaged("is a tensor over elements " + std::to_string(id.view_offset) + " to " +
                          std::to_string(id.view_offset) + " + " + std::to_string(*id.view_length) +
                          " of a storage of " + std::to_string(id.length) +
                          "; only elements inside the storage are accepted");
  }
  return bytes;
}

}  // namespace torchamp::checkpoint
