#include "torchamp/ops/registered_kernels.h"

#include <algorithm>
#include <iterator>

namespace torchamp::ops::detail {
namespace {

// The keys that an op on CPU tensors takes its kernels from: of the op itself, of its gradients,
// of its casts.
constexpr std::string_view kKeys[] = {"CPU", "CompositeExplicitAutogradNonFunctional[alias]",
                                      "CompositeExplicitAutograd[alias]",
                                      "CompositeImplicitAutograd[alias]"};
constexpr std::string_view kAutogradKeys[] = {"AutogradCPU", "Autograd[alias]"};
constexpr std::string_view kAutocastKey = "AutocastCPU";

// Whether a kernel of ours on `key` would take calls from one that was registered on `name`.
bool is_reached(std::string_view name, c10::DispatchKey key) {
  const auto contains = [name](const auto& names) {
    return std::find(std::begin(names), std::end(names), name) != std::end(names);
  };
  if (contains(kKeys)) return true;
  if (key == c10::DispatchKey::CPU) return false;
  return contains(kAutogradKeys) || (key == c10::DispatchKey::AutocastCPU && name == kAutocastKey);
}

// Calls visit(key, is_active, text) for each of those kernels, the text without its signature.
template <typename F>
void for_each_kernel(std::string_view state, c10::DispatchKey reached_from, F&& visit) {
  constexpr std::string_view kInactive = " (inactive)";
  while (!state.empty()) {
    const size_t end = state.find('\n');
    const std::string_view line = state.substr(0, end);
    state.remove_prefix(end == std::string_view::npos ? state.size() : end + 1);
    const size_t colon = line.find(": ");
    if (colon == std::string_view::npos) continue;
    std::string_view key = line.substr(0, colon);
    const bool is_active = !key.ends_with(kInactive);
    if (!is_active) key.remove_suffix(kInactive.size());
    if (!is_reached(key, reached_from)) continue;
    const std::string_view text = line.substr(colon + 2);
    visit(key, is_active, text.substr(0, text.find(" :: ")));
  }
}

// LibTorch's kernels are registered in its own source folders, or the ones generated beside them.
bool is_libtorchs(std::string_view text) {
  return text.find("aten/src/ATen/") != std::string_view::npos ||
         text.find("torch/csrc/autograd/") != std::string_view::npos;
}

}  // namespace

std::string others_kernel(std::string_view state, c10::DispatchKey reached_from) {
  std::string found;
  std::string_view covered_key;
  for_each_kernel(state, reached_from, [&](std::string_view key, bool is_active, std::string_view) {
    if (!is_active) covered_key = key;  // LibTorch registers one kernel a key
  });
  for_each_kernel(state, reached_from,
                  [&](std::string_view key, bool is_active, std::string_view text) {
                    if (is_active && found.empty() && (!is_libtorchs(text) || key == covered_key))
                      found = text;
                  });
  return found;
}

std::string others_kernel(const c10::OperatorHandle& op, c10::DispatchKey key) {
  return others_kernel(op.dumpState(), key);
}

std::string active_kernel(const c10::OperatorHandle& op, c10::DispatchKey wanted) {
  std::string found;
  for_each_kernel(op.dumpState(), wanted,
                  [&](std::string_view key, bool is_active, std::string_view text) {
                    if (is_active && key == c10::toString(wanted)) found = text;
                  });
  return found;
}

}  // namespace torchamp::ops::detail
