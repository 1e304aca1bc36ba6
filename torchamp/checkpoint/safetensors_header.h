#pragma once
// The header of a safetensors file: JSON to a checked list of tensors, and back. Knows no files.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <c10/core/ScalarType.h>

#include "torchamp/base/state_dict.h"

namespace torchamp::checkpoint::safetensors {

/// What the format allows a header to have.
inline constexpr uint64_t kMaxHeaderBytes = 100'000'000;
/// The little-endian length of the header, in front of it.
inline constexpr uint64_t kLengthBytes = 8;
/// The length that a file's first kLengthBytes, which must be there, announce.
uint64_t header_length(std::string_view start);
/// The name that is no tensor's.
inline constexpr std::string_view kMetadataName = "__metadata__";

struct Tensor {
  std::string name;
  at::ScalarType dtype = at::ScalarType::Undefined;
  std::vector<int64_t> shape;
  uint64_t begin = 0;  // in the data, which follows the header
  uint64_t end = 0;
};

struct Header {
  std::vector<Tensor> tensors;  // by their place in the data
  base::StateDict metadata;     // str to str
};

/// Reads and checks `json`, the header of a file with `data_bytes` of data behind it. FormatError
/// names the byte or the tensor of a fault. Memory is in proportion to the size of `json`.
Header parse_header(std::string_view json, uint64_t data_bytes);

/// The header as the reference implementation writes it: padded to a multiple of 8 bytes. Dtypes,
/// names and metadata must have been checked.
std::string format_header(const Header& header);

/// The place of a dtype in the order in which tensors lie in a file, the last first; nothing for a
/// dtype that the format has not.
std::optional<int> rank_of(at::ScalarType dtype);

/// The dtypes that the format has, for messages.
std::string accepted_dtypes();

}  // namespace torchamp::checkpoint::safetensors
