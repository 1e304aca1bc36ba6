#pragma once
// TensorBuilder: tensors, from the calls that rebuild them in Python and the storages that the file
// holds.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include "torchamp/checkpoint/build_context.h"
#include "torchamp/checkpoint/storage_id.h"
#include "torchamp/checkpoint/storage_reader.h"

namespace torchamp::checkpoint {

/// Where the storages of a pickle are: each has a key in it.
struct Storages {
  /// The bytes of a key; FormatError when the file has no such storage.
  std::function<Extent(const std::string& key)> find;
  StorageReader& reader;
};

/// Makes every tensor once: the same object in Python is the same tensor here.
class TensorBuilder {
 public:
  TensorBuilder(BuildContext& context, const Storages& storages)
      : context_(context), storages_(storages) {}

  /// The tensor that `call` rebuilds; fails by its name when it does not.
  at::Tensor tensor(const Node& call);

 private:
  at::Tensor build(const Node& callee, const Node& arguments, const Node& call);
  at::Tensor strided(const std::vector<const Node*>& arguments, const Node* dtype_node,
                     const Node* metadata);
  std::vector<int64_t> integers(const Node& node, const char* what) const;
  void check_bounds(int64_t offset, const std::vector<int64_t>& sizes,
                    const std::vector<int64_t>& strides, int64_t item_bytes,
                    int64_t available) const;
  StorageId storage_id(const Node& node) const;
  const at::Storage& storage(const StorageId& id);

  BuildContext& context_;
  const Storages& storages_;
  std::unordered_map<const Node*, at::Tensor> tensors_;
  std::unordered_map<std::string, std::pair<at::Storage, Extent>> known_storages_;
};

}  // namespace torchamp::checkpoint
