#include "cli/checkpoint_file.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <string_view>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "torchamp/base/words.h"
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
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) text += ", ";
    if (text.size() >= kShownCharacters) {
      text += "...";
      break;
    }
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
    for (size_t i = 0; i < dict->size(); ++i) {
      if (i > 0) text += ", ";
      if (text.size() >= kShownCharacters) {
        text += "...";
        break;
      }
      text += base::to_string(dict->entries()[i].key) + ": ";
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
    const std::string& string = value.to_string();
    const bool has_quote = string.find('\'') != std::string::npos;
    const char quote = has_quote && string.find('"') == std::string::npos ? '"' : '\'';
    text += quote + base::printable(string) + quote;
  } else if (const auto* big = std::get_if<base::BigInt>(&value.storage())) {
    text += big->to_string();
  } else if (const auto* complex = std::get_if<c10::complex<double>>(&value.storage())) {
    text += "(" + float_text(complex->real()) + (std::signbit(complex->imag()) ? "" : "+") +
            float_text(complex->imag()) + "j)";
  } else if (const auto* bytes = std::get_if<base::Bytes>(&value.storage())) {
    text += base::counted(bytes->data.size(), "byte");
  } else if (const auto* dtype = std::get_if<at::ScalarType>(&value.storage())) {
    text += "torch." + base::dtype_name(*dtype);
  } else if (const auto* device = std::get_if<at::Device>(&value.storage())) {
    text += "device '" + device->str() + "'";
  } else {
    text += value.type_name();
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
    file.has_checksums = first == 'P';
    file.format = file.has_checksums ? ".pt (zip)" : ".pt (as before PyTorch 1.6)";
  }
  return file;
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
  if (bytes < 10000) return base::counted(bytes, "byte");
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
  size_t end = kShownCharacters;
  while ((static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) --end;  // within a character
  return text.substr(0, end) + "...";
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

}  // namespace torchamp::cli
