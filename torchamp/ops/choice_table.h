#pragma once
// The choices of the process: looked up at each call, measured at the first. Internal.

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include "torchamp/ops/call_key.h"
#include "torchamp/ops/choices.h"

namespace torchamp::ops::detail {

/// What the switches say of a 16-bit call: the way that it takes where nothing is chosen, and
/// whether something may be. Never twice a thread: an op that a chosen one calls inside is not
/// chosen, so that the choice of the outer one stands for all that it does.
struct Rule {
  Way standing = Way::kLibTorch;
  bool chooses = false;
};
Rule rule_for(at::ScalarType dtype);

/// Whether every float16 call takes a float32 path: where the CPU has no fp16 arithmetic.
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

/// The ways that a call has; the first is the one that it takes where nothing is chosen.
using Ways = c10::SmallVector<Way, kWays.size()>;

/// The way of these arguments, from the table, or measured now by `run`, which computes the op by
/// the way that it is given. One measurement is under way at a time; whoever meets the same
/// arguments meanwhile waits for it. Where there is one way, the table is full, or LibTorch is
/// asked for deterministic algorithms, the first, unmeasured and not kept in the table.
///
/// Errors: those of the first way; nothing is remembered then.
Way choose(const CallHash& hash, const std::string& op, const std::string& arguments,
           const Ways& ways, const std::function<void(Way)>& run);

/// The switches, in the order of choices.h; `installed` is not among them. A few nanoseconds.
bool choices_are_on();
/// Reads TORCHAMP_OPS_CHOICES; called by install().
void read_choices_environment();

/// What a state_dict holds. Errors: CheckpointError.
std::vector<Choice> choices_of(const base::StateDict& state);

/// For tests: changes the times before they are compared. nullptr takes it away.
using TimesHook = void (*)(Choice& choice);
void set_times_hook(TimesHook hook);

}  // namespace torchamp::ops::detail
