#pragma once
// A module's tensors as Python's state_dict() names and orders them, and their way out of such a
// state. Internal.

#include <string>
#include <unordered_set>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include "torchamp/base/loading.h"
#include "torchamp/base/state_dict.h"

namespace torchamp::optim::detail {

/// Calls visit(name, tensor, is_buffer) for every defined parameter and buffer: the own ones, then
/// those of the children, which is Python's order. LibTorch's recursive lists put all parameters
/// before all buffers.
template <typename Visit>
void for_each_tensor(const torch::nn::Module& module, const Visit& visit,
                     const std::string& prefix = "") {
  const auto visit_defined = [&](const auto& items, bool is_buffer) {
    for (const auto& item : items) {
      if (item.value().defined()) visit(prefix + item.key(), item.value(), is_buffer);
    }
  };
  visit_defined(module.named_parameters(/*recurse=*/false), false);
  visit_defined(module.named_buffers(/*recurse=*/false), true);
  for (const auto& child : module.named_children()) {
    if (child.value()) for_each_tensor(*child.value(), visit, prefix + child.key() + ".");
  }
}

/// Compares the tensors of a state with those that are to take them over.
class NamedCopies {
 public:
  struct Copy {
    at::Tensor from, to;
  };

  /// `state` outlives this.
  explicit NamedCopies(const base::StateDict& state) : state_(state) {}

  /// The state should have a tensor for `to`: of the same sizes and dtype, or both floating, or
  /// both complex.
  void expect(const std::string& key, const at::Tensor& to);
  /// The state may have this entry, which is not copied.
  void allow(const std::string& key) { known_.insert(key); }

  /// What is missing, unexpected, or of another shape or type.
  void report(base::Differences& differences) const;
  /// All that fit, in the order in which they were expected.
  const std::vector<Copy>& copies() const { return copies_; }

 private:
  const base::StateDict& state_;
  std::unordered_set<std::string> known_;
  std::vector<std::string> missing_, different_;
  std::vector<Copy> copies_;
};

}  // namespace torchamp::optim::detail
