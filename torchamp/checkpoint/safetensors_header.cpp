#include "torchamp/checkpoint/safetensors_header.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <tuple>
#include <utility>

#include <nlohmann/json.hpp>

#include "torchamp/checkpoint/dtype.h"
#include "torchamp/checkpoint/format_error.h"

namespace torchamp::checkpoint::safetensors {
namespace {

using enum at::ScalarType;

constexpr const char* kDamaged = " Was the file damaged?";

struct NamedDtype {
  at::ScalarType type;
  std::string_view name;
};

// In the order of the reference implementation, "increasing alignment", by which it sorts.
constexpr std::array kDtypes = {
    NamedDtype{Bool, "BOOL"},
    NamedDtype{Byte, "U8"},
    NamedDtype{Char, "I8"},
    NamedDtype{Float8_e5m2, "F8_E5M2"},
    NamedDtype{Float8_e4m3fn, "F8_E4M3"},
    NamedDtype{Float8_e8m0fnu, "F8_E8M0"},
    NamedDtype{Float8_e4m3fnuz, "F8_E4M3FNUZ"},
    NamedDtype{Float8_e5m2fnuz, "F8_E5M2FNUZ"},
    NamedDtype{Short, "I16"},
    NamedDtype{UInt16, "U16"},
    NamedDtype{Half, "F16"},
    NamedDtype{BFloat16, "BF16"},
    NamedDtype{Int, "I32"},
    NamedDtype{UInt32, "U32"},
    NamedDtype{Float, "F32"},
    NamedDtype{ComplexFloat, "C64"},
    NamedDtype{Double, "F64"},
    NamedDtype{Long, "I64"},
    NamedDtype{UInt64, "U64"},
};

std::string shown(std::string_view name) { return "'" + base::printable(name) + "'"; }

// Takes the parser's events and allows only what a header may hold, so nothing is kept but tensors
// and metadata. Fields of a tensor that this version does not know are passed over, as the
// reference implementation passes them.
class HeaderReader final : public nlohmann::json_sax<nlohmann::json> {
 public:
  Header take() { return std::move(header_); }

  bool null() override {
    if (state_ != State::kMetadataStart) return passed_over("null");
    state_ = State::kNames;  // no metadata
    return true;
  }
  bool boolean(bool value) override { return passed_over(value ? "true" : "false"); }
  bool number_integer(number_integer_t value) override {
    return passed_over(std::to_string(value));
  }
  bool number_float(number_float_t /*value*/, const string_t& text) override {
    return passed_over(base::printable(text));
  }
  bool binary(binary_t& /*value*/) override { unexpected("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (state_ == State::kShape) {
      if (value > static_cast<uint64_t>(INT64_MAX)) unexpected(std::to_string(value));
      constexpr size_t kMaxDims = 64;  // LibTorch's own limit
      if (tensor().shape.size() == kMaxDims) unexpected("more than 64 numbers");
      tensor().shape.push_back(static_cast<int64_t>(value));
    } else if (state_ == State::kOffsets && num_offsets_ < 2) {
      (num_offsets_++ == 0 ? tensor().begin : tensor().end) = value;
    } else {
      return passed_over(std::to_string(value));
    }
    return true;
  }

  bool string(string_t& value) override {
    if (state_ == State::kMetadataValue) {
      header_.metadata.set(std::move(metadata_key_), std::move(value));
      state_ = State::kMetadata;
    } else if (state_ == State::kDtype) {
      const auto* it = std::find_if(kDtypes.begin(), kDtypes.end(),
                                    [&](const NamedDtype& dtype) { return dtype.name == value; });
      if (it == kDtypes.end()) unexpected(shown(value));
      tensor().dtype = it->type;
      state_ = State::kFields;
    } else {
      return passed_over("a string");
    }
    return true;
  }

  bool start_object(std::size_t /*count*/) override {
    switch (state_) {
      case State::kStart:
        state_ = State::kNames;
        return true;
      case State::kMetadataStart:
        state_ = State::kMetadata;
        return true;
      case State::kTensorStart:
        state_ = State::kFields;
        return true;
      case State::kUnknown:
        ++unknown_depth_;
        return true;
      default:
        unexpected("an object");
    }
  }

  bool key(string_t& value) override {
    if (state_ == State::kUnknown) return true;
    if (state_ == State::kNames) {
      if (value == kMetadataName) {
        if (std::exchange(has_metadata_, true)) fail_twice("__metadata__");
        state_ = State::kMetadataStart;
      } else {
        header_.tensors.emplace_back().name = std::move(value);
        fields_ = {};
        num_offsets_ = 0;
        state_ = State::kTensorStart;
      }
    } else if (state_ == State::kMetadata) {
      if (header_.metadata.contains(value))
        fail_twice("entry " + shown(value) + " of its __metadata__");
      metadata_key_ = std::move(value);
      state_ = State::kMetadataValue;
    } else {
      field(value);
    }
    return true;
  }

  bool end_object() override {
    if (state_ == State::kUnknown) return end_unknown();
    if (state_ == State::kFields) {
      for (size_t i = 0; i < kFields.size(); ++i) {
        if (!fields_[i]) {
          throw FormatError("tensor " + shown(tensor().name) + " has no " +
                            std::string(kFields[i].name) +
                            "; dtype, shape and data_offsets are expected." + kDamaged);
        }
      }
    }
    state_ = State::kNames;  // after the outermost object the parser lets nothing follow
    return true;
  }

  bool start_array(std::size_t /*count*/) override {
    if (state_ == State::kUnknown) {
      ++unknown_depth_;
      return true;
    }
    if (state_ != State::kShapeStart && state_ != State::kOffsetsStart) unexpected("an array");
    state_ = state_ == State::kShapeStart ? State::kShape : State::kOffsets;
    return true;
  }

  bool end_array() override {
    if (state_ == State::kUnknown) return end_unknown();
    if (state_ == State::kOffsets && num_offsets_ != 2) {
      unexpected(num_offsets_ == 0 ? "no number" : "one number");
    }
    state_ = State::kFields;
    return true;
  }

  bool parse_error(std::size_t position, const std::string& /*token*/,
                   const nlohmann::json::exception& error) override {
    const bool is_utf8 = std::string_view(error.what()).find("UTF-8") == std::string_view::npos;
    throw FormatError("the header is not JSON at its byte " +
                      std::to_string(position == 0 ? 0 : position - 1) +
                      (is_utf8 ? "" : ", which is not UTF-8") +
                      "; one JSON object, padded with spaces, is expected." + kDamaged);
  }

 private:
  enum class State {
    kStart,
    kNames,
    kMetadataStart,
    kMetadata,
    kMetadataValue,
    kTensorStart,
    kFields,
    kDtype,
    kShapeStart,
    kShape,
    kOffsetsStart,
    kOffsets,
    kUnknown,
  };
  struct Field {
    std::string_view name;
    State state;
  };
  static constexpr std::array kFields = {Field{"dtype", State::kDtype},
                                         Field{"shape", State::kShapeStart},
                                         Field{"data_offsets", State::kOffsetsStart}};

  Tensor& tensor() { return header_.tensors.back(); }

  void field(const std::string& name) {
    const auto* it = std::find_if(kFields.begin(), kFields.end(),
                                  [&](const Field& field) { return field.name == name; });
    if (it == kFields.end()) {
      state_ = State::kUnknown;
      return;
    }
    bool& is_there = fields_[static_cast<size_t>(it - kFields.begin())];
    if (std::exchange(is_there, true)) {
      fail_twice("the " + name + " of tensor " + shown(tensor().name));
    }
    state_ = it->state;
  }

  // A value that is neither tensor nor metadata: an unknown field's, or a part of it.
  bool passed_over(const std::string& found) {
    if (state_ != State::kUnknown) unexpected(found);
    if (unknown_depth_ == 0) state_ = State::kFields;
    return true;
  }
  bool end_unknown() {
    if (--unknown_depth_ == 0) state_ = State::kFields;
    return true;
  }

  [[noreturn]] static void fail_twice(const std::string& what) {
    throw FormatError("the header holds " + what +
                      " twice; each name is accepted once. Was the file made to show different "
                      "readers different tensors?");
  }

  // The value at hand is not what may stand here.
  [[noreturn]] void unexpected(const std::string& found) {
    std::string place = "the header";
    std::string expected = "one JSON object";
    const auto of_tensor = [&](const char* part, std::string accepted) {
      place = part + ("tensor " + shown(tensor().name));
      expected = std::move(accepted);
    };
    switch (state_) {
      case State::kMetadataStart:
        place = "__metadata__";
        expected = "an object of strings";
        break;
      case State::kMetadataValue:
        place = "entry " + shown(metadata_key_) + " of __metadata__";
        expected = "a string";
        break;
      case State::kTensorStart:
        of_tensor("", "an object of dtype, shape and data_offsets");
        break;
      case State::kDtype:
        of_tensor("the dtype of ", "one of " + accepted_dtypes());
        break;
      case State::kShapeStart:
      case State::kShape:
        of_tensor("the shape of ", "an array of at most 64 integers from 0");
        break;
      case State::kOffsetsStart:
      case State::kOffsets:
        of_tensor("the data_offsets of ", "an array of two integers from 0");
        break;
      default:
        break;
    }
    throw FormatError(place + " has " + found + " where " + expected + " is expected." + kDamaged);
  }

  Header header_;
  State state_ = State::kStart;
  bool has_metadata_ = false;
  std::string metadata_key_;
  std::array<bool, kFields.size()> fields_{};  // those that the tensor at hand has had
  int num_offsets_ = 0;
  size_t unknown_depth_ = 0;  // arrays and objects open within an unknown field
};

void refuse_repeated_names(const std::vector<Tensor>& tensors) {
  std::vector<std::string_view> names;
  names.reserve(tensors.size());
  for (const Tensor& tensor : tensors) names.push_back(tensor.name);
  std::sort(names.begin(), names.end());
  const auto it = std::adjacent_find(names.begin(), names.end());
  if (it != names.end()) {
    throw FormatError("the header holds tensor " + shown(*it) +
                      " twice; each name is accepted once. Was the file made to show different "
                      "readers different tensors?");
  }
}

// Bytes of a tensor; nothing where its strides or its size would not fit 63 bits.
std::optional<uint64_t> num_bytes(const Tensor& tensor) {
  int64_t reach = static_cast<int64_t>(c10::elementSize(tensor.dtype));
  bool is_empty = false;
  for (const int64_t size : tensor.shape) {
    is_empty = is_empty || size == 0;
    if (__builtin_mul_overflow(reach, std::max<int64_t>(size, 1), &reach)) return std::nullopt;
  }
  return is_empty ? 0 : static_cast<uint64_t>(reach);
}

// `expected`: where the tensor before it ends.
void check_place(const Tensor& tensor, uint64_t expected, uint64_t data_bytes) {
  const std::string who = "tensor " + shown(tensor.name);
  const std::string range =
      " lies at bytes " + std::to_string(tensor.begin) + " to " + std::to_string(tensor.end);
  if (tensor.end < tensor.begin) {
    throw FormatError(who + range + " of the data; an end after the beginning is expected." +
                      kDamaged);
  }
  if (tensor.end > data_bytes) {
    throw FormatError(who + range + " of the data, and the file ends after " +
                      std::to_string(data_bytes) +
                      "; all of the data is expected. Was the file truncated, or is its download "
                      "incomplete?");
  }
  if (tensor.begin != expected) {
    throw FormatError(
        who + range +
        (tensor.begin < expected ? ", inside the tensor" : ", not at the end of the tensor") +
        " before it; each is expected to begin where another ends, here at byte " +
        std::to_string(expected) + "." + kDamaged);
  }
  const std::optional<uint64_t> size = num_bytes(tensor);
  if (size != tensor.end - tensor.begin) {
    throw FormatError(who + " has " + std::to_string(tensor.end - tensor.begin) +
                      " bytes of data; its dtype and shape need " +
                      (size ? std::to_string(*size) : "more than all memory") + "." + kDamaged);
  }
}

}  // namespace

uint64_t header_length(std::string_view start) {
  uint64_t length = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) {
    length |= uint64_t{static_cast<unsigned char>(start[i])} << (8 * i);
  }
  return length;
}

Header parse_header(std::string_view json, uint64_t data_bytes) {
  if (json.empty() || json.front() != '{') {
    throw FormatError(
        "the header does not begin with '{'; a JSON object is expected. Is this a "
        "safetensors file?");
  }
  // The parser takes a zero byte for the end of its input.
  if (const size_t zero = json.find('\0'); zero != std::string_view::npos) {
    throw FormatError("the header is not JSON at its byte " + std::to_string(zero) +
                      "; one JSON object, padded with spaces, is expected." + kDamaged);
  }
  HeaderReader reader;
  nlohmann::json::sax_parse(json.begin(), json.end(), &reader);
  Header header = reader.take();
  refuse_repeated_names(header.tensors);
  std::sort(header.tensors.begin(), header.tensors.end(), [](const Tensor& a, const Tensor& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  uint64_t end = 0;
  for (const Tensor& tensor : header.tensors) {
    check_place(tensor, end, data_bytes);
    end = tensor.end;
  }
  if (end != data_bytes) {
    throw FormatError("the last " + std::to_string(data_bytes - end) +
                      " bytes of the file belong to no tensor; tensors are expected to fill it. "
                      "Was something appended to it?");
  }
  return header;
}

std::string format_header(const Header& header) {
  const auto string = [](const std::string& text) {
    try {
      return nlohmann::json(text).dump();  // escapes what the reference implementation escapes
    } catch (const nlohmann::json::type_error&) {
      throw FormatError("the name or string " + shown(text) +
                        " is not UTF-8; safetensors files hold UTF-8 only.");
    }
  };
  std::string json = "{";
  const auto begin_entry = [&](const std::string& name) {
    json += (json.size() > 1 ? "," : "") + string(name) + ":{";
  };
  if (!header.metadata.empty()) {
    begin_entry(std::string(kMetadataName));
    const char* separator = "";
    for (const auto& [key, value] : header.metadata.entries()) {
      json += separator + string(std::get<std::string>(key)) + ":" + string(value.to_string());
      separator = ",";
    }
    json += '}';
  }
  for (const Tensor& tensor : header.tensors) {
    begin_entry(tensor.name);
    json += R"("dtype":")" + std::string(kDtypes[*rank_of(tensor.dtype)].name) + R"(","shape":[)";
    const char* separator = "";
    for (const int64_t size : tensor.shape) {
      json += separator + std::to_string(size);
      separator = ",";
    }
    json += R"(],"data_offsets":[)" + std::to_string(tensor.begin) + "," +
            std::to_string(tensor.end) + "]}";
  }
  json += '}';
  json.resize((json.size() + 7) / 8 * 8, ' ');
  return json;
}

std::optional<int> rank_of(at::ScalarType dtype) {
  const auto* it = std::find_if(kDtypes.begin(), kDtypes.end(),
                                [&](const NamedDtype& each) { return each.type == dtype; });
  if (it == kDtypes.end()) return std::nullopt;
  return static_cast<int>(it - kDtypes.begin());
}

std::string accepted_dtypes() {
  std::string names;
  for (const NamedDtype& dtype : kDtypes) {
    names += (names.empty() ? "" : ", ") + std::string(dtype.name);
  }
  return names;
}

}  // namespace torchamp::checkpoint::safetensors
