#pragma once
// The choices of the process: looked up at each call, measured at the first. Internal.

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "torchamp/ops/call_key.h"
#include "torchamp/ops/choices.h"

namespace torchamp::ops::detail {

/// What the switches say of a 16-bit call.
enum class Rule { kLibTorch, kFloat32, kChoose };
/// kChoose at most once a thread: an op that a chosen one calls inside is LibTorch's, so that the
/// choice of the outer one stands for all that it does.
Rule rule_for(at::ScalarType dtype);

/// Whether every float16 call takes the float32 path: where the CPU has no fp16 arithmetic.
void set_widens_half(bool on);

/// An op that is chosen is under way on this thread.
class Choosing {
 public:
  Choosing();
  ~Choosing();
  Choosing(const Choosing&) = delete;
  Choosing& operator=(const Choosing&) = delete;
};

/// The way of these arguments, if this thread has seen them. Tens of nanoseconds.
std::optional<Way> remembered(const CallHash& hash);

/// The way of these arguments, from the table, or measured now by `run`, which computes the op by
/// the way that it is given. One measurement is under way at a time; whoever meets the same
/// arguments meanwhile waits for it. Where the table is full, or LibTorch is asked for
/// deterministic algorithms, LibTorch's, unmeasured and not kept in the table.
///
/// Errors: those of LibTorch's way; nothing is remembered then.
Way choose(const CallHash& hash, const std::string& op, const std::string& arguments,
           const std::function<void(Way)>& run);

/// The switches, in the order of choices.h; `installed` is not among them. A few nanoseconds.
bool choices_are_on();
/// Reads TORCHAMP_OPS_CHOICES; called by install().
void read_choices_environment();

/// What a state_dict holds. Errors: CheckpointError.
std::vector<Choice> choices_of(const base::StateDict& state);

/// For tests: changes the times before they are compared. nullptr takes it away.
using TimesHook = void (*)(double& libtorch_us, double& float32_us);
void set_times_hook(TimesHook hook);

}  // namespace torchamp::ops::detail
