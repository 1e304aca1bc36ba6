#include "torchamp/ops/registered_kernels.h"

namespace torchamp::ops::detail {
namespace {

// The keys that an op on CPU tensors takes its kernel from.
constexpr std::string_view kKeys[] = {"CPU", "CompositeExplicitAutogradNonFunctional[alias]",
                                      "CompositeExplicitAutograd[alias]",
                                      "CompositeImplicitAutograd[alias]"};

// Calls visit(key, is_active, text) for each kernel on those keys, the text without its signature.
template <typename F>
void for_each_kernel(std::string_view state, F&& visit) {
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
    for (const std::string_view wanted : kKeys) {
      if (key != wanted) continue;
      std::string_view text = line.substr(colon + 2);
      visit(key, is_active, text.substr(0, text.find(" :: ")));
    }
  }
}

// LibTorch's kernels are registered in its own source folder, or the one generated beside it.
bool is_libtorchs(std::string_view text) {
  return text.find("aten/src/ATen/") != std::string_view::npos;
}

}  // namespace

std::string others_kernel(std::string_view state) {
  std::string found;
  std::string_view covered_key;
  for_each_kernel(state, [&](std::string_view key, bool is_active, std::string_view) {
    if (!is_active) covered_key = key;  // LibTorch registers one kernel a key
  });
  for_each_kernel(state, [&](std::string_view key, bool is_active, std::string_view text) {
    if (is_active && found.empty() && (!is_libtorchs(text) || key == covered_key)) found = text;
  });
  return found;
}

std::string others_kernel(const c10::OperatorHandle& op) { return others_kernel(op.dumpState()); }

std::string cpu_kernel(const c10::OperatorHandle& op) {
  std::string found;
  for_each_kernel(op.dumpState(), [&](std::string_view key, bool is_active, std::string_view text) {
    if (is_active && key == "CPU") found = text;
  });
  return found;
}

}  // namespace torchamp::ops::detail
