#include "torchamp/ops/install.h"

#include <cstdlib>
#include <mutex>
#include <optional>
#include <string_view>
#include <utility>

#include <c10/util/Exception.h>

#include "torchamp/base/error.h"
#include "torchamp/base/quiet_warnings.h"
#include "torchamp/base/state_dict.h"
#include "torchamp/ops/choice_table.h"
#include "torchamp/ops/choices.h"
#include "torchamp/ops/fp16_arithmetic.h"
#include "torchamp/ops/op_kernel.h"
#include "torchamp/ops/registered_kernels.h"

namespace torchamp::ops {
namespace {

constexpr const char* kOurs = "registered by TorchAmp's ops";
constexpr c10::DispatchKey kAbove = c10::DispatchKey::AutogradCPU;

struct Op {
  detail::OpKernel kernel;
  std::optional<c10::OperatorHandle> handle;
  OpState state = OpState::kLibTorch;
  std::string other;
  std::vector<c10::RegistrationHandleRAII> registrations = {};
};

std::string environment() {
  const char* value = std::getenv("TORCHAMP_OPS");
  return value == nullptr ? std::string() : value;
}

struct Registry {
  std::mutex mutex;
  std::vector<Op> ops;
  bool is_wanted = false;     // install() was called, and not taken back
  int num_installations = 0;  // objects that live
  bool is_installed = false;

  Registry() {
    detail::OpTable table;
    detail::add_matrix_products(table);
    detail::add_layers(table);
    detail::add_half_layers(table);
    detail::add_recurrent_layer(table);
    detail::add_half_losses(table);
    detail::add_batch_norm(table);
    detail::add_half_reductions(table);
    detail::add_half_composites(table);
    detail::add_half_elements(table);
    detail::add_half_more_layers(table);
    detail::add_smooth_l1(table);
    detail::add_group_norm(table);
    detail::add_row_sums(table);
    detail::add_picked_numbers(table);
    detail::add_softmax(table);
    detail::add_gelu(table);
    detail::add_layer_norm(table);
    detail::add_relu(table);
    detail::add_max_pool(table);
    for (const detail::OpKernel& kernel : table.kernels()) {
      ops.push_back({kernel,
                     c10::Dispatcher::singleton().findSchema({kernel.name, kernel.overload_name}),
                     OpState::kLibTorch,
                     {}});
    }
  }

  void put_on() {
    const base::QuietWarnings quiet;  // of a kernel that is put over another
    const bool all = environment() == "all";
    detail::set_widens_half(all || !detail::has_fp16_arithmetic());
    detail::read_choices_environment();
    for (Op& op : ops) look(op, all);  // before any of ours stands there
    for (Op& op : ops) put_on(op);
    detail::kernels_are_on = true;
    is_installed = true;
  }

  static void look(Op& op, bool all) {
    op.state = OpState::kReplaced;
    if (!op.registrations.empty()) return;
    if (!op.handle.has_value()) {
      op.state = OpState::kNotInLibTorch;
      return;
    }
    if (op.kernel.traits.is_for_cpus_without_fp16 && detail::has_fp16_arithmetic() && !all) {
      op.state = OpState::kNotNeeded;
      return;
    }
    op.other = detail::others_kernel(*op.handle, op.kernel.traits.key);
    if (op.kernel.traits.is_composite && op.handle->hasKernelForDispatchKey(kAbove)) {
      op.other = "a kernel on AutogradCPU";
    }
    if (!op.other.empty()) op.state = OpState::kOthers;
  }

  static void put_on(Op& op) {
    if (op.state != OpState::kReplaced || !op.registrations.empty()) return;
    op.kernel.before->take(*op.handle, op.kernel.traits.key);
    op.registrations.push_back(put_on(op, op.kernel.traits.key));
    if (op.kernel.traits.is_composite) op.registrations.push_back(put_on(op, kAbove));
  }

  static bool is_covered(const Op& op) {
    return detail::active_kernel(*op.handle, op.kernel.traits.key).find(kOurs) == std::string::npos;
  }

  static c10::RegistrationHandleRAII put_on(const Op& op, c10::DispatchKey key) {
    return c10::Dispatcher::singleton().registerImpl(
        op.handle->operator_name(), key, op.kernel.make(), std::nullopt, nullptr, kOurs);
  }

  void take_off() {
    detail::kernels_are_on = false;
    for (Op& op : ops) {
      const bool stays = !op.registrations.empty() &&
                         op.kernel.traits.key == c10::DispatchKey::AutocastCPU && is_covered(op);
      if (!stays) op.registrations.clear();
      op.state = op.handle.has_value() ? OpState::kLibTorch : OpState::kNotInLibTorch;
      op.other.clear();
    }
    is_installed = false;
  }

  void settle() {
    const bool should_be = is_wanted || num_installations > 0;
    if (should_be && !is_installed) put_on();
    if (!should_be && is_installed) take_off();
  }
};

Registry& registry() {
  static Registry instance;
  return instance;
}

bool is_off() {
  for (const std::string& error : {environment_error(), choices_environment_error()}) {
    if (!error.empty()) throw base::UsageError(error);
  }
  return environment() == "off";
}

}  // namespace

std::string environment_error() {
  const std::string value = environment();
  if (value.empty() || value == "on" || value == "off" || value == "all") return {};
  return "[TORCHAMP_OPS] The environment variable TORCHAMP_OPS is '" + base::printable(value) +
         "'; on, off, all or no value is accepted.";
}

bool install() {
  const bool off = is_off();
  Registry& all = registry();
  const std::lock_guard<std::mutex> lock(all.mutex);
  all.is_wanted = all.is_wanted || !off;
  all.settle();
  return all.is_installed;
}

void uninstall() {
  Registry& all = registry();
  const std::lock_guard<std::mutex> lock(all.mutex);
  all.is_wanted = false;
  all.settle();
}

bool installed() {
  Registry& all = registry();
  const std::lock_guard<std::mutex> lock(all.mutex);
  return all.is_installed;
}

Installation::Installation() : is_counted_(!is_off()) {
  if (!is_counted_) return;
  Registry& all = registry();
  const std::lock_guard<std::mutex> lock(all.mutex);
  ++all.num_installations;
  all.settle();
}

Installation::~Installation() {
  if (!is_counted_) return;
  Registry& all = registry();
  const std::lock_guard<std::mutex> lock(all.mutex);
  --all.num_installations;
  all.settle();
}

const char* to_string(OpState state) {
  switch (state) {
    case OpState::kLibTorch:
      return "LibTorch's";
    case OpState::kReplaced:
      return "replaced";
    case OpState::kOthers:
      return "another library's";
    case OpState::kCovered:
      return "covered by another library";
    case OpState::kNotNeeded:
      return "not needed here";
    case OpState::kNotInLibTorch:
      return "not in this LibTorch";
  }
  TORCH_INTERNAL_ASSERT(false, "unknown state");
}

std::vector<ReplacedOp> list() {
  Registry& all = registry();
  const std::lock_guard<std::mutex> lock(all.mutex);
  std::vector<ReplacedOp> rows;
  for (const Op& op : all.ops) {
    ReplacedOp row;
    row.name = op.kernel.name;
    if (*op.kernel.overload_name != '\0') row.name += std::string(".") + op.kernel.overload_name;
    if (op.kernel.traits.key == c10::DispatchKey::AutocastCPU) row.name += " under autocast";
    row.dtypes = op.kernel.dtypes;
    row.reason = op.kernel.reason;
    row.state = op.state;
    row.other = op.other;
    if (all.is_installed && op.state == OpState::kReplaced) {
      const std::string active = detail::active_kernel(*op.handle, op.kernel.traits.key);
      if (active.find(kOurs) == std::string::npos) {
        row.state = OpState::kCovered;
        row.other = active;
      }
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace torchamp::ops
