#pragma once
// The names that .pt files give to dtypes.

#include <optional>
#include <string_view>

#include <c10/core/ScalarType.h>

namespace torchamp::checkpoint {

/// One dtype that torch.save writes.
struct SavedDtype {
  at::ScalarType type;
  /// Python's name, without "torch.": float32.
  std::string_view name;
  /// Python's storage class, without "torch.": FloatStorage. Empty for the newer dtypes, which are
  /// written as UntypedStorage and `_rebuild_tensor_v3` with the dtype beside.
  std::string_view storage_class;
};

std::optional<SavedDtype> find_dtype(at::ScalarType type);
std::optional<SavedDtype> find_dtype_by_name(std::string_view name);
std::optional<SavedDtype> find_dtype_by_storage(std::string_view storage_class);

}  // namespace torchamp::checkpoint
