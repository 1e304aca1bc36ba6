#pragma once
// What a pickle says of a storage that lies outside it: the persistent id.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "torchamp/checkpoint/dtype.h"
#include "torchamp/checkpoint/unpickler.h"

namespace torchamp::checkpoint {

/// ('storage', class, key, location, length[, view]) of torch/serialization.py.
struct StorageId {
  std::string_view storage_class;   // "torch\nFloatStorage"
  std::optional<SavedDtype> dtype;  // absent: bytes, or a class that is not known
  bool is_untyped = false;          // the class is that of bytes
  int64_t item_bytes = 1;
  std::string key;
  int64_t length = 0;  // in items, of the whole storage
  // Files before PyTorch 0.4 or so: only these items of it.
  int64_t view_offset = 0;
  std::optional<int64_t> view_length;

  bool is_known() const { return is_untyped || dtype.has_value(); }
};

/// The id that a node of kind kStorage holds; nothing when it is not of that form.
std::optional<StorageId> parse_storage_id(const Node& storage);

}  // namespace torchamp::checkpoint
