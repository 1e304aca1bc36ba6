#pragma once
// AutocastPolicy: which op runs in which type inside of a region, as a value that can be changed.

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <c10/core/DeviceType.h>

#include "torchamp/amp/op_rule.h"
#include "torchamp/base/export.h"

namespace torch::nn {
class Module;
}

namespace torchamp::amp {

namespace detail {
struct Rules;
struct PolicyAccess;
}  // namespace detail

/// The rules of one device type's regions: LibTorch's own, with changes on top.
///
/// A value: every change gives a new policy and leaves this one alone. Hand it to a region through
/// AutocastOptions; it holds in that region, on that thread, and in regions inside that name none.
///
/// Op names are those of the dispatcher, "softmax.int", or without an overload, "softmax", for all
/// of them; "aten::" may be left out, another library's namespace may not. Ops that write to their
/// arguments, or hand them out again as views, cannot be cast and take no rule.
///
/// The rules are kernels on LibTorch's autocast keys, for the ops that need one, registered while
/// some policy with them exists; in threads and regions without a policy they call what was there
/// before them, other libraries' kernels included.
///
/// Threads: make and destroy policies while no other thread is inside of an autocast region.
/// Errors:  c10::ValueError for an op that does not exist, with the nearest names.
/// Example: examples/autocast_policy.cpp
class TORCHAMP_API AutocastPolicy {
 public:
  /// LibTorch's own rules for CPU or CUDA; what regions have when nothing is said. For other
  /// devices the same as none().
  static AutocastPolicy libtorch(c10::DeviceType device_type);
  /// The rules of CUDA also on CPU: softmax, norms, reductions, losses and pow in float32. What
  /// only CPU lists stays as it is there, binary_cross_entropy too: in float32, no error.
  static AutocastPolicy strict(c10::DeviceType device_type);
  /// No rules of our own and no weight-cast cache of our own: LibTorch's kernels and its cache.
  static AutocastPolicy none();

  /// The op's floating arguments are cast to the region's dtype.
  [[nodiscard]] AutocastPolicy allow(std::string_view op) const;
  /// Nothing is cast in the op, nor in the ops that it consists of.
  [[nodiscard]] AutocastPolicy deny(std::string_view op) const;
  /// The op's floating arguments are cast to float32.
  [[nodiscard]] AutocastPolicy fp32(std::string_view op) const;
  /// The op's floating arguments are cast to the widest type among them.
  [[nodiscard]] AutocastPolicy promote(std::string_view op) const;

  /// Runs a part of a model in float32: every op that takes a parameter or buffer of a submodule of
  /// `root` whose path matches runs with autocast off and its floating arguments cast to float32.
  ///
  /// `pattern` is a path as in named_modules(), "layer4.0.conv1"; `*` matches any characters, `?`
  /// one. A match holds for everything below it. Ops without parameters that such a module runs
  /// between, softmax of an attention block say, follow the other rules; fp32_island() takes a
  /// whole call. Parameters that are added or exchanged later are not seen.
  ///
  /// Errors: c10::ValueError when no submodule matches, with the nearest paths.
  [[nodiscard]] AutocastPolicy fp32_modules(const torch::nn::Module& root,
                                            std::string_view pattern) const;

  /// What happens to an op, "softmax.int".
  ///
  /// Errors: c10::ValueError for a name without overload whose overloads have different rules.
  OpRule rule(std::string_view op) const;
  /// All ops that are listed, by name, with their rules.
  std::vector<std::pair<std::string, OpRule>> rules() const;

  /// The device type whose regions may have it; c10::Error for none(), which any may have.
  c10::DeviceType device_type() const;
  /// False for none().
  explicit operator bool() const { return rules_ != nullptr; }

 private:
  friend struct detail::PolicyAccess;
  explicit AutocastPolicy(std::shared_ptr<const detail::Rules> rules) : rules_(std::move(rules)) {}
  AutocastPolicy with(std::string_view op, OpRule rule) const;

  std::shared_ptr<const detail::Rules> rules_;
};

}  // namespace torchamp::amp
