#include "torchamp/checkpoint/numpy.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <optional>
#include <string_view>
#include <vector>

#include <ATen/ops/empty.h>
#include <c10/util/Half.h>

#include "torchamp/base/utf8.h"
#include "torchamp/base/words.h"

namespace torchamp::checkpoint {
namespace {

using base::Value;
using Kind = Node::Kind;

// The bytes of a str whose characters are below 256; nothing when one is not.
std::optional<std::string> latin1(std::string_view utf8) {
  std::string bytes;
  for (size_t i = 0; i < utf8.size(); ++i) {
    const auto lead = static_cast<unsigned char>(utf8[i]);
    if (lead < 0x80) {
      bytes.push_back(utf8[i]);
      continue;
    }
    const bool is_pair = (lead == 0xC2 || lead == 0xC3) && i + 1 < utf8.size() &&
                         (static_cast<unsigned char>(utf8[i + 1]) & 0xC0U) == 0x80U;
    if (!is_pair) return std::nullopt;
    bytes.push_back(
        static_cast<char>((lead << 6) | (static_cast<unsigned char>(utf8[++i]) & 0x3F)));
  }
  return bytes;
}

}  // namespace

std::string bytes_of(BuildContext& context, const Node& node, const char* what) {
  if (node.kind == Kind::kBytes || (node.kind == Kind::kString && node.integer != 0)) {
    context.spend(node.text.size());
    return std::string(node.text);
  }
  const bool is_encoded = is_call(node, "_codecs\nencode");
  if (is_encoded || is_call(node, "builtins\nbytes") || is_call(node, "builtins\nbytearray")) {
    const std::vector<const Node*>& arguments = arguments_of(node);
    if (arguments.empty() && !is_encoded) return {};
    if (arguments.size() == 1 && !is_encoded &&
        (arguments[0]->kind == Kind::kBytes || is_call(*arguments[0], "_codecs\nencode"))) {
      return bytes_of(context, *arguments[0], what);
    }
    if (arguments.size() == 2 && arguments[0]->kind == Kind::kString &&
        (arguments[1]->text == "latin1" || arguments[1]->text == "latin-1")) {
      context.spend(arguments[0]->text.size());
      if (auto bytes = latin1(arguments[0]->text)) return *std::move(bytes);
    }
    context.fail_damaged(
        std::string(what) +
        " something other than a latin1 str and how to encode it, as Python writes bytes");
  }
  context.fail_damaged(std::string(what) + " " + base::with_article(kind_text(node)) +
                       "; bytes are expected");
}

namespace numpy {
namespace {

// What one item of an array is: kind and size as in numpy's 'f8'.
struct Dtype {
  char kind = 0;
  size_t size = 0;  // in bytes
  bool is_swapped = false;
  std::string name;  // as the file has it
};

// Whether `node` calls `name`, "multiarray\nscalar" say, of numpy 1 or 2.
bool is_numpy_call(const Node& node, std::string_view name) {
  if (node.kind != Kind::kCall) return false;
  const std::string_view global = node.items[0]->text;
  for (const std::string_view package : {"numpy.core.", "numpy._core."}) {
    if (global.starts_with(package) && global.substr(package.size()) == name) return true;
  }
  return false;
}

// numpy.dtype('f8', align, copy), with state (3, '<', ...) for the byte order.
Dtype dtype_of(BuildContext& context, const Node& node) {
  const bool is_dtype = is_call(node, "numpy\ndtype") && !arguments_of(node).empty() &&
                        arguments_of(node)[0]->kind == Kind::kString;
  if (!is_dtype) {
    context.fail("is a numpy value whose dtype is " + base::with_article(kind_text(node)) +
                 "; numpy.dtype of a name is accepted. Convert it to a tensor before saving.");
  }
  const std::string_view name = arguments_of(node)[0]->text;
  Dtype dtype;
  dtype.name = base::printable(name);
  std::string_view rest = name;
  if (!rest.empty() && std::string_view("<>=|").find(rest[0]) != std::string_view::npos) {
    dtype.is_swapped = rest[0] == '>';
    rest.remove_prefix(1);
  }
  uint32_t count = 0;
  const bool is_sized =
      rest.size() > 1 && std::from_chars(rest.data() + 1, rest.data() + rest.size(), count).ptr ==
                             rest.data() + rest.size();
  if (is_sized) {
    dtype.kind = rest[0];
    dtype.size = dtype.kind == 'U' ? size_t{4} * count : count;
  }
  const Node* state = node.state;
  if (state != nullptr) {
    const bool is_state = state->kind == Kind::kTuple && state->items.size() >= 2 &&
                          state->items[1]->kind == Kind::kString;
    if (!is_state) context.fail_damaged("is a numpy value whose dtype has no byte order");
    dtype.is_swapped = state->items[1]->text == ">";
  }
  const auto is = [&](std::string_view kinds, std::initializer_list<size_t> sizes) {
    return kinds.find(dtype.kind) != std::string_view::npos &&
           std::find(sizes.begin(), sizes.end(), dtype.size) != sizes.end();
  };
  const bool is_known =
      dtype.kind != 0 && (is("b", {1}) || is("iu", {1, 2, 4, 8}) || is("f", {2, 4, 8}) ||
                          is("c", {8, 16}) || dtype.kind == 'S' || dtype.kind == 'U');
  if (!is_known) {
    context.fail("is a numpy value of dtype '" + dtype.name +
                 "'; bool, int, float and complex of at most 64 bits a part, bytes and str are "
                 "accepted. Convert it before saving.");
  }
  return dtype;
}

// To the machine's order, little-endian.
void swap_bytes(const Dtype& dtype, char* data, size_t size) {
  const size_t part = dtype.kind == 'c' ? dtype.size / 2 : dtype.kind == 'U' ? 4 : dtype.size;
  if (!dtype.is_swapped || dtype.kind == 'S' || part < 2) return;
  for (size_t at = 0; at + part <= size; at += part) std::reverse(data + at, data + at + part);
}

template <typename T>
T item(const std::string& bytes, size_t index = 0) {
  T value;
  std::memcpy(&value, bytes.data() + index * sizeof(T), sizeof(T));
  return value;
}

Value value_of(BuildContext& context, const Dtype& dtype, const std::string& bytes) {
  const bool is_signed = dtype.kind == 'i';
  switch (dtype.kind) {
    case 'b':
      return bytes[0] != 0;
    case 'i':
    case 'u': {
      uint64_t bits = 0;
      std::memcpy(&bits, bytes.data(), dtype.size);
      const size_t unused = 64 - 8 * dtype.size;
      if (is_signed) return static_cast<int64_t>(bits << unused) >> unused;
      if (bits <= INT64_MAX) return static_cast<int64_t>(bits);
      return base::BigInt{bytes + '\0'};  // a ninth byte for the sign
    }
    case 'f':
      if (dtype.size == 2) return static_cast<double>(item<c10::Half>(bytes));
      return dtype.size == 4 ? static_cast<double>(item<float>(bytes)) : item<double>(bytes);
    case 'c':
      if (dtype.size == 8) return c10::complex<double>(item<float>(bytes), item<float>(bytes, 1));
      return c10::complex<double>(item<double>(bytes), item<double>(bytes, 1));
    case 'S':  // zeros fill it up
      return base::Bytes{bytes.substr(0, bytes.find_last_not_of('\0') + 1)};
    default: {  // 'U': characters of 4 bytes
      std::string text;
      size_t count = bytes.size() / 4;
      while (count > 0 && item<uint32_t>(bytes, count - 1) == 0) --count;
      for (size_t i = 0; i < count; ++i) {
        const auto code = item<uint32_t>(bytes, i);
        if (code > 0x10FFFF) context.fail_damaged("is a numpy str with a character beyond Unicode");
        base::detail::append_utf8(text, code);
      }
      return text;
    }
  }
}

std::optional<at::ScalarType> scalar_type(const Dtype& dtype) {
  struct Pair {
    char kind;
    size_t size;
    at::ScalarType type;
  };
  constexpr std::array kPairs = {
      Pair{'b', 1, at::kBool},         Pair{'i', 1, at::kChar},          Pair{'i', 2, at::kShort},
      Pair{'i', 4, at::kInt},          Pair{'i', 8, at::kLong},          Pair{'u', 1, at::kByte},
      Pair{'u', 2, at::kUInt16},       Pair{'u', 4, at::kUInt32},        Pair{'u', 8, at::kUInt64},
      Pair{'f', 2, at::kHalf},         Pair{'f', 4, at::kFloat},         Pair{'f', 8, at::kDouble},
      Pair{'c', 8, at::kComplexFloat}, Pair{'c', 16, at::kComplexDouble}};
  for (const Pair& pair : kPairs) {
    if (pair.kind == dtype.kind && pair.size == dtype.size) return pair.type;
  }
  return std::nullopt;
}

// An array's parts, however it was pickled.
struct Parts {
  const Node* shape = nullptr;
  const Node* dtype = nullptr;
  const Node* bytes = nullptr;
  bool is_fortran = false;
};

Parts parts_of(BuildContext& context, const Node& call) {
  Parts parts;
  if (is_numpy_call(call, "numeric\n_frombuffer")) {  // (bytes, dtype, shape, order), protocol 5
    const std::vector<const Node*>& arguments = arguments_of(call);
    if (arguments.size() == 4) {
      parts = {arguments[2], arguments[1], arguments[0], arguments[3]->text == "F"};
    }
  } else if (const Node* state = call.state;  // (1, shape, dtype, is_fortran, bytes)
             state != nullptr && state->kind == Kind::kTuple && state->items.size() == 5) {
    const std::vector<const Node*>& items = state->items;
    parts = {items[1], items[2], items[4], items[3]->kind == Kind::kBool && items[3]->integer != 0};
  }
  if (parts.shape == nullptr || parts.shape->kind != Kind::kTuple) {
    context.fail_damaged("is a numpy array without shape, dtype and bytes");
  }
  return parts;
}

}  // namespace

bool is_scalar(const Node& node) { return is_numpy_call(node, "multiarray\nscalar"); }

Value scalar(BuildContext& context, const Node& call) {
  const std::vector<const Node*>& arguments = arguments_of(call);
  if (arguments.size() != 2) {
    context.fail_damaged("is a numpy scalar without dtype and bytes");
  }
  const Dtype dtype = dtype_of(context, *arguments[0]);
  std::string bytes = bytes_of(context, *arguments[1], "is a numpy scalar whose data is");
  if (bytes.size() != dtype.size) {
    context.fail_damaged("is a numpy scalar of dtype '" + dtype.name + "' with " +
                         std::to_string(bytes.size()) + " bytes of data; " +
                         std::to_string(dtype.size) + " are expected");
  }
  swap_bytes(dtype, bytes.data(), bytes.size());
  return value_of(context, dtype, bytes);
}

bool is_array(const Node& node) {
  return is_numpy_call(node, "multiarray\n_reconstruct") ||
         is_numpy_call(node, "numeric\n_frombuffer");
}

at::Tensor array(BuildContext& context, const Node& call) {
  const Parts parts = parts_of(context, call);
  const Dtype dtype = dtype_of(context, *parts.dtype);
  const std::optional<at::ScalarType> type = scalar_type(dtype);
  if (!type) {
    context.fail("is a numpy array of dtype '" + dtype.name +
                 "'; the dtypes that tensors have are accepted. Save a list instead.");
  }
  constexpr size_t kMaxDims = 64;  // of LibTorch and of numpy
  std::vector<int64_t> shape;
  auto expected = static_cast<int64_t>(dtype.size);
  bool is_shape = parts.shape->items.size() <= kMaxDims;
  for (const Node* size : parts.shape->items) {
    is_shape = is_shape && size->kind == Kind::kInt && size->integer >= 0 &&
               !__builtin_mul_overflow(expected, size->integer, &expected);
    if (is_shape) shape.push_back(size->integer);
  }
  if (!is_shape) context.fail_damaged("is a numpy array whose shape is not a tuple of sizes");
  std::string bytes = bytes_of(context, *parts.bytes, "is a numpy array whose data is");
  if (bytes.size() != static_cast<uint64_t>(expected)) {
    context.fail_damaged("is a numpy array that needs " + std::to_string(expected) +
                         " bytes of data and has " + std::to_string(bytes.size()));
  }
  context.spend(sizeof(at::TensorImpl) + bytes.size());
  swap_bytes(dtype, bytes.data(), bytes.size());
  if (parts.is_fortran) std::reverse(shape.begin(), shape.end());
  at::Tensor result = at::empty(shape, at::TensorOptions().dtype(*type));
  if (!bytes.empty()) std::memcpy(result.mutable_data_ptr(), bytes.data(), bytes.size());
  if (!parts.is_fortran || shape.size() < 2) return result;
  std::vector<int64_t> reversed;
  for (size_t i = shape.size(); i-- > 0;) reversed.push_back(static_cast<int64_t>(i));
  return result.permute(reversed).contiguous();
}

}  // namespace numpy
}  // namespace torchamp::checkpoint
