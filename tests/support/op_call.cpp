#include "support/op_call.h"

#include <map>
#include <regex>
#include <sstream>
#include <utility>

#include "support/recipe.h"

namespace torchamp::testing {
namespace {

using c10::IValue;
using nlohmann::json;

const std::map<std::string, std::pair<at::ScalarType, char>> kDtypes = {
    {"float32", {at::kFloat, 'f'}},
    {"bfloat16", {at::kBFloat16, 'b'}},
    {"float16", {at::kHalf, 'h'}},
    {"float64", {at::kDouble, 'd'}},
    {"complex64", {at::kComplexFloat, 'C'}},
    {"complex128", {at::kComplexDouble, 'Z'}},
    {"complex32", {at::kComplexHalf, 'c'}},
    {"int64", {at::kLong, 'l'}},
    {"int32", {at::kInt, 'i'}},
    {"uint8", {at::kByte, 'B'}},
    {"bool", {at::kBool, 'o'}}};

c10::OperatorName operator_name(const std::string& name) {
  const std::string whole = "aten::" + name.substr(0, name.find('/'));
  const size_t dot = whole.find('.');
  return {whole.substr(0, dot), dot == std::string::npos ? "" : whole.substr(dot + 1)};
}

std::vector<int64_t> integers_in(const std::string& text, char separator) {
  std::vector<int64_t> values;
  std::istringstream stream(text);
  for (std::string item; std::getline(stream, item, separator);) {
    values.push_back(std::stoll(item));
  }
  return values;
}

// "N,C" by the op that names dimensions; a LibTorch without it has no recipe with names.
void name_dimensions(const at::Tensor& tensor, const std::string& names) {
  c10::List<std::string> list;
  std::istringstream stream(names);
  for (std::string name; std::getline(stream, name, ',');) {
    list.push_back("dimname::" + name);
  }
  torch::jit::Stack stack = {tensor, list};
  find_op("rename_").callBoxed(stack);
}

class Builder {
 public:
  Builder(const std::array<at::ScalarType, 2>& dtypes, at::Device device)
      : dtypes_(dtypes), device_(device) {}

  IValue build(const json& value, const c10::Type& type) {
    if (value.is_null()) {
      return {};
    }
    switch (type.kind()) {
      case c10::TypeKind::OptionalType:
        return build(value, *type.castRaw<c10::OptionalType>()->getElementType());
      case c10::TypeKind::ListType:
        return build_list(value, type.castRaw<c10::ListType>()->getElementType());
      case c10::TypeKind::TensorType:
        return tensor(value.get<std::string>());
      case c10::TypeKind::BoolType:
        return value.get<bool>();
      case c10::TypeKind::FloatType:
        return value.get<double>();
      case c10::TypeKind::StringType:
        return value.get<std::string>();
      default:
        break;  // integers, dtypes, and numbers of either kind
    }
    if (value.is_string()) {
      return static_cast<int64_t>(dtype_of(value.get<std::string>().substr(1)));
    }
    return value.is_number_float() ? IValue(value.get<double>()) : IValue(value.get<int64_t>());
  }

  std::vector<at::Tensor> take_leaves() { return std::move(leaves_); }

 private:
  IValue build_list(const json& values, const c10::TypePtr& element) {
    c10::impl::GenericList list(
        element->kind() == c10::TypeKind::SymIntType ? c10::TypePtr(c10::IntType::get()) : element);
    for (const json& value : values) {
      list.push_back(build(value, *element));
    }
    return list;
  }

  at::Tensor tensor(const std::string& text) {
    static const std::regex pattern(R"(@([a-z]):([0-9x]*)(!?)(?:\{(.*)\})?(?:=(.*))?)");
    std::smatch part;
    TORCH_CHECK_VALUE(std::regex_match(text, part, pattern), "[op_call] '", text,
                      "' describes no tensor; \"@u:2x3\" and its like do (op_recipes.py).");
    const char kind = part.str(1).front();
    const std::vector<int64_t> sizes = integers_in(part.str(2), 'x');
    const uint64_t stream = 20 + count_++;
    if (kind == 'v' || kind == 'w' || kind == 'k') {
      const at::ScalarType dtype = kind == 'v' ? at::kLong : kind == 'w' ? at::kInt : at::kBool;
      return torch::tensor(integers_in(part.str(5), ',')).reshape(sizes).to(device_, dtype);
    }
    at::Tensor value = uniform(stream, sizes);
    if (kind == 'p') {
      value = value * 0.375 + 0.5;
    } else if (kind == 'n') {
      value = torch::where(value < 0, -torch::ones_like(value), torch::ones_like(value));
    } else if (kind == 'g') {
      value = value / 8 + 2 * torch::eye(sizes[0], sizes[1]);
    } else if (kind == 's') {
      value = (value + value.t()) / 8 + 2 * torch::eye(sizes[0], sizes[1]);
    }
    value = value.to(device_, dtypes_.at(leaves_.empty() ? 0 : 1));
    if (part[4].matched) {
      name_dimensions(value, part.str(4));
    }
    value.requires_grad_(part.str(3).empty());
    leaves_.push_back(value);
    return value;
  }

  const std::array<at::ScalarType, 2>& dtypes_;
  at::Device device_;
  std::vector<at::Tensor> leaves_;
  uint64_t count_ = 0;
};

// Names of dimensions, which travel qualified; tensors stay as they are.
json qualified(const json& value) {
  if (value.is_array()) {
    json list = json::array();
    for (const json& item : value) {
      list.push_back(qualified(item));
    }
    return list;
  }
  const bool is_name = value.is_string() && value.get<std::string>().front() != '@';
  return is_name ? json("dimname::" + value.get<std::string>()) : value;
}

}  // namespace

bool has_op(const std::string& name) {
  return c10::Dispatcher::singleton().findSchema(operator_name(name)).has_value();
}

c10::OperatorHandle find_op(const std::string& name) {
  const c10::OperatorName whole = operator_name(name);
  const auto found = c10::Dispatcher::singleton().findSchema(whole);
  TORCH_CHECK(found, "[find_op] This LibTorch has no op ", whole, ".");
  return *found;
}

OpArguments op_arguments(const c10::OperatorHandle& op, const json& recipe,
                         const std::array<at::ScalarType, 2>& dtypes, at::Device device) {
  json positional = recipe;
  json named = json::object();
  if (!positional.empty() && positional.back().is_object()) {
    named = positional.back();
    positional.erase(positional.size() - 1);
  }
  const std::string& overload = op.operator_name().overload_name;
  const bool takes_names =
      overload.find("imname") != std::string::npos || overload.rfind("names_", 0) == 0;
  Builder builder(dtypes, device);
  OpArguments result;
  size_t next = 0;
  for (const c10::Argument& argument : op.schema().arguments()) {
    const bool is_named = named.contains(argument.name());
    if (!is_named && next >= positional.size()) {
      TORCH_CHECK_VALUE(argument.default_value(), "[op_arguments] The recipe of ",
                        op.operator_name(), " gives nothing for '", argument.name(),
                        "', which has no default.");
      result.stack.push_back(*argument.default_value());
      continue;
    }
    json value = is_named ? named[argument.name()] : positional[next++];
    if (takes_names) {
      value = qualified(value);
    }
    result.stack.push_back(builder.build(value, *argument.type()));
  }
  result.leaves = builder.take_leaves();
  return result;
}

at::ScalarType dtype_of(const std::string& name) { return kDtypes.at(name).first; }

char letter(const at::Tensor& tensor) {
  if (!tensor.defined()) {
    return '-';
  }
  for (const auto& [name, dtype] : kDtypes) {
    if (dtype.first == tensor.scalar_type()) {
      return dtype.second;
    }
  }
  return '?';
}

std::string first_line(const std::exception& error) {
  const auto* known = dynamic_cast<const c10::Error*>(&error);
  const std::string text = known != nullptr ? known->what_without_backtrace() : error.what();
  static const std::regex type_name("CPU(Byte|Char|Short|Int|Long|Half|Float|Double)Type");
  return std::regex_replace(text.substr(0, text.find('\n')), type_name, "torch.$1Tensor");
}

}  // namespace torchamp::testing
