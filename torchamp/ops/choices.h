#pragma once
// Choices: which of several kernels computes an op on 16-bit tensors of a shape. Made by
// measurement on this machine, listed, saved and loaded here.

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "torchamp/base/export.h"
#include "torchamp/base/state_dict.h"

namespace torchamp::ops {

/// Who computes.
enum class Way : uint8_t {
  kLibTorch,            ///< LibTorch's kernel for the tensors' own dtype
  kFloat32,             ///< its float32 kernel on widened tensors; the result is rounded once
  kChannelsLast,        ///< its kernel for the own dtype on copies in channels_last
  kFloat32ChannelsLast  ///< its float32 kernel on such copies, widened
};
inline constexpr std::array<Way, 4> kWays = {Way::kLibTorch, Way::kFloat32, Way::kChannelsLast,
                                             Way::kFloat32ChannelsLast};

/// What was found for an op and a kind of arguments.
struct Choice {
  std::string op;         ///< "aten::mm"
  std::string arguments;  ///< "bfloat16 16x64 64x64, 1 thread"; see docs/choices.md
  /// Microseconds of each way, in the order of kWays. Nothing: the op has no such way for these
  /// arguments. Infinite: it failed.
  std::array<std::optional<double>, kWays.size()> us;
  Way way = Way::kLibTorch;
};

/// Choices that are kept; when so many are made, LibTorch's kernels take whatever else comes.
inline constexpr int64_t kMaxChoices = 4096;

/// "LibTorch's", "float32", "channels_last", "float32 channels_last".
TORCHAMP_API const char* to_string(Way way);

/// All choices that the process has made or loaded, in that order.
TORCHAMP_API std::vector<Choice> choices();

/// How many there are, and how many of them for each way but LibTorch's.
struct ChoiceCount {
  int64_t all = 0;
  int64_t float32 = 0;
  int64_t channels_last = 0;
  int64_t float32_channels_last = 0;
};
TORCHAMP_API ChoiceCount count_choices();

/// Forgets them all; what is met next is measured anew.
TORCHAMP_API void clear_choices();

/// Whether choices are made and followed: install() is on, set_choosing(false) was not called, no
/// NoChoices lives, and the environment variable TORCHAMP_OPS_CHOICES is not "off". Without them
/// LibTorch's kernels compute in bfloat16, and in float16 on CPUs with fp16 arithmetic; on others
/// float16 is widened.
TORCHAMP_API bool choosing();

/// Switches choices off, or on again, for the process. Those that were made are kept.
TORCHAMP_API void set_choosing(bool on);

/// Keeps choices off while it lives.
class TORCHAMP_API NoChoices {
 public:
  NoChoices();
  ~NoChoices();
  NoChoices(const NoChoices&) = delete;
  NoChoices& operator=(const NoChoices&) = delete;
};

/// The choices as a checkpoint holds them: plain lists, numbers and names.
TORCHAMP_API base::StateDict choices_state_dict();

/// Follows the choices of `state` from now on; they replace those made here for the same arguments.
/// A run that goes on from a checkpoint on the same CPU thus computes the same bits.
///
/// Errors: CheckpointError naming the entry that is missing, of another type or unknown; nothing is
///         changed then.
TORCHAMP_API void load_choices_state_dict(const base::StateDict& state);

/// What is wrong with the environment variable TORCHAMP_OPS_CHOICES, as a sentence, or an empty
/// string.
TORCHAMP_API std::string choices_environment_error();

}  // namespace torchamp::ops
