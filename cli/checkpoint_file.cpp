#include "cli/checkpoint_file.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <string_view>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "torchamp/checkpoint/checkpoint.h"
#include "torchamp/checkpoint/safetensors.h"

namespace torchamp::cli {
namespace {

using base::Value;
using Json = nlohmann::ordered_json;

constexpr size_t kShownCharacters = 100;  // of one value: a line of a terminal

// Adds the text of `value` until `text` is long.
void append(std::string& text, const Value& value, int depth);

void append_items(std::string& text, const std::vector<Value>& items, const char* open,
                  const char* close, int depth) {
  text += open;
  for (size_t i = 0; i < items.size() && text.size() < kShownCharacters; ++i) {
    if (i > 0) text += ", ";
    append(text, items[i], depth + 1);
  }
  text += close;
}

void append(std::string& text, const Value& value, int depth) {
  constexpr int kMostDepth = 3;
  const auto* dict = std::get_if<base::StateDict>(&value.storage());
  const bool is_container =
      dict != nullptr || value.is<base::List>() || value.is<base::Tuple>() || value.is<base::Set>();
  if (is_container && depth >= kMostDepth) {
    text += "...";
  } else if (dict != nullptr) {
    text += '{';
    for (size_t i = 0; i < dict->size() && text.size() < kShownCharacters; ++i) {
      text += (i > 0 ? ", " : "") + base::to_string(dict->entries()[i].key) + ": ";
      append(text, dict->entries()[i].value, depth + 1);
    }
    text += '}';
  } else if (value.is<base::List>()) {
    append_items(text, value.to_items(), "[", "]", depth);
  } else if (value.is<base::Tuple>()) {
    append_items(text, value.to_items(), "(", value.to_items().size() == 1 ? ",)" : ")", depth);
  } else if (value.is<base::Set>()) {
    append_items(text, value.to_items(), value.to_items().empty() ? "set(" : "{",
                 value.to_items().empty() ? ")" : "}", depth);
  } else if (value.is_none()) {
    text += "None";
  } else if (value.is<bool>()) {
    text += value.to_bool() ? "True" : "False";
  } else if (value.is<int64_t>()) {
    text += std::to_string(value.to_int());
  } else if (value.is<double>()) {
    text += float_text(value.to_double());
  } else if (value.is<std::string>()) {
    text += "'" + base::printable(value.to_string()) + "'";
  } else if (const auto* big = std::get_if<base::BigInt>(&value.storage())) {
    text += big->to_string();
  } else if (const auto* complex = std::get_if<c10::complex<double>>(&value.storage())) {
    text += "(" + float_text(complex->real()) + (std::signbit(complex->imag()) ? "" : "+") +
            float_text(complex->imag()) + "j)";
  } else if (const auto* bytes = std::get_if<base::Bytes>(&value.storage())) {
    text += std::to_string(bytes->data.size()) + " bytes";
  } else if (const auto* dtype = std::get_if<at::ScalarType>(&value.storage())) {
    text += "torch." + dtype_name(*dtype);
  } else if (const auto* device = std::get_if<at::Device>(&value.storage())) {
    text += "device '" + device->str() + "'";
  } else {
    text += value.type_name();
  }
}

// A few bytes of a file may claim any number of elements that overlap each other; to visit them all
// would take for ever.
bool multiplies_its_storage(const at::Tensor& tensor) {
  constexpr int64_t kHarmless = int64_t{1} << 24;
  constexpr int64_t kMostFold = 64;
  const auto stored = static_cast<int64_t>(tensor.storage().nbytes() / tensor.element_size());
  return tensor.numel() > kHarmless && tensor.numel() / kMostFold > stored;
}

void visit_pieces(const std::vector<at::Tensor>& tensors,
                  const std::function<void(const std::vector<at::Tensor>&)>& visit) {
  constexpr int64_t kMost = int64_t{1} << 20;
  const at::Tensor& first = tensors.front();
  if (first.numel() <= kMost) {
    std::vector<at::Tensor> pieces;
    for (const at::Tensor& tensor : tensors) {
      pieces.push_back(tensor.resolve_conj().resolve_neg().contiguous().reshape({-1}));
    }
    visit(pieces);
    return;
  }
  const auto longest = std::max_element(first.sizes().begin(), first.sizes().end());
  const int64_t dim = longest - first.sizes().begin();
  const int64_t half = *longest / 2;
  for (const auto& [start, length] :
       {std::pair(int64_t{0}, half), std::pair(half, *longest - half)}) {
    std::vector<at::Tensor> halves;
    for (const at::Tensor& tensor : tensors) halves.push_back(tensor.narrow(dim, start, length));
    visit_pieces(halves, visit);
  }
}

}  // namespace

CheckpointFile open_checkpoint(const std::filesystem::path& path) {
  CheckpointFile file;
  file.path = path;
  file.is_safetensors = checkpoint::is_safetensors(path);
  file.bytes = std::filesystem::file_size(path);
  const checkpoint::LoadOptions mapped = {.mmap = true, .verify = {}};
  if (file.is_safetensors) {
    file.format = "safetensors";
    file.metadata = checkpoint::safetensors_metadata(path);
    file.root = checkpoint::load_safetensors(path, mapped);
  } else {
    file.root = checkpoint::load_value(path, mapped);
    char first = '\0';
    std::ifstream(path, std::ios::binary).get(first);
    file.format = first == 'P' ? ".pt (zip)" : ".pt (as before PyTorch 1.6)";
  }
  return file;
}

std::string dtype_name(at::ScalarType dtype) {
  constexpr std::array<std::pair<at::ScalarType, const char*>, 11> kOtherNames = {{
      {at::kFloat, "float32"},
      {at::kDouble, "float64"},
      {at::kHalf, "float16"},
      {at::kLong, "int64"},
      {at::kInt, "int32"},
      {at::kShort, "int16"},
      {at::kChar, "int8"},
      {at::kByte, "uint8"},
      {at::kComplexHalf, "complex32"},
      {at::kComplexFloat, "complex64"},
      {at::kComplexDouble, "complex128"},
  }};
  for (const auto& [type, name] : kOtherNames) {
    if (type == dtype) return name;
  }
  std::string name = c10::toString(dtype);
  for (char& letter : name) {
    letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  }
  return name;
}

std::string shape_text(at::IntArrayRef shape) {
  std::string text = "(";
  for (size_t i = 0; i < shape.size(); ++i) {
    text += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  }
  return text + (shape.size() == 1 ? ",)" : ")");
}

std::string bytes_text(uint64_t bytes) {
  constexpr std::array kUnits = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes < 10000) return std::to_string(bytes) + " bytes";
  auto value = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  for (; value >= 1000 && unit + 1 < kUnits.size(); ++unit) value /= 1024;
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1f %s", value, kUnits[unit]);
  return text.data();
}

std::string float_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  std::array<char, 32> digits{};
  const auto result = std::to_chars(digits.data(), digits.data() + digits.size(), value);
  std::string text(digits.data(), result.ptr);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

std::string value_text(const Value& value) {
  std::string text;
  append(text, value, 0);
  if (text.size() <= kShownCharacters + 40) return text;
  return text.substr(0, kShownCharacters) + "...";
}

Json number_json(double value) {
  return std::isfinite(value) ? Json(value) : Json(float_text(value));
}

Json value_json(const Value& value) {
  if (value.is_none()) return nullptr;
  if (value.is<bool>()) return value.to_bool();
  if (value.is<int64_t>()) return value.to_int();
  if (value.is<double>()) return number_json(value.to_double());
  if (value.is<std::string>()) return value.to_string();
  return value_text(value);
}

std::optional<int64_t> for_each_piece(
    std::vector<at::Tensor> tensors,
    const std::function<void(const std::vector<at::Tensor>&)>& visit) {
  int64_t fold = 1;
  for (int64_t dim = 0; dim < tensors.front().dim(); ++dim) {
    const bool is_repeated = std::all_of(
        tensors.begin(), tensors.end(),
        [&](const at::Tensor& each) { return each.size(dim) > 1 && each.stride(dim) == 0; });
    if (!is_repeated) continue;
    fold *= tensors.front().size(dim);  // within an int64_t, as the number of elements is
    for (at::Tensor& tensor : tensors) tensor = tensor.narrow(dim, 0, 1);
  }
  if (std::any_of(tensors.begin(), tensors.end(), multiplies_its_storage)) return std::nullopt;
  visit_pieces(tensors, visit);
  return fold;
}

at::Tensor reach_of(const at::Tensor& tensor) {
  int64_t last = 0;
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
    last += (tensor.size(dim) - 1) * tensor.stride(dim);
  }
  return tensor.as_strided({last + 1}, {1});
}

at::Tensor as_doubles(const at::Tensor& piece) {
  const at::Tensor real = piece.is_complex() ? torch::view_as_real(piece).reshape({-1}) : piece;
  // 8-bit floats are converted to float32 alone.
  return real.element_size() == 1 && real.is_floating_point() ? real.to(at::kFloat).to(at::kDouble)
                                                              : real.to(at::kDouble);
}

}  // namespace torchamp::cli
