#pragma once
// Any file of tensors that TorchAmp reads, by its content, and how its values are called and
// counted.

#include <cstdint>
#include <filesystem>
#include <string>

#include <nlohmann/json.hpp>

#include "torchamp/base/state_dict.h"

namespace torchamp::cli {

struct CheckpointFile {
  std::filesystem::path path;
  const char* format = "";
  bool is_safetensors = false;
  bool has_checksums = false;
  uint64_t bytes = 0;
  base::Value root;
  base::StateDict metadata;  // of safetensors
};

/// Opens a .pt or a safetensors file, mapped. CheckpointError naming the file and what is wrong.
CheckpointFile open_checkpoint(const std::filesystem::path& path);

/// "(2, 3)", as Python writes it.
std::string shape_text(at::IntArrayRef shape);

/// "1234 bytes" or "1.2 MiB".
std::string bytes_text(uint64_t bytes);

/// A float as Python prints it: 0.1, 1e-08, nan.
std::string float_text(double value);

/// A value as Python prints it, on one line and without control characters; a long one ends in
/// "...". Tensors and what is deep within are named by their type.
std::string value_text(const base::Value& value);

/// A value that is no tensor and holds none, for JSON: numbers that are not finite as "nan", "inf"
/// and "-inf"; ints beyond 64 bits, bytes, dtypes and the like as text.
nlohmann::ordered_json value_json(const base::Value& value);
nlohmann::ordered_json number_json(double value);

}  // namespace torchamp::cli
