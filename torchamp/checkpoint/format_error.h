#pragma once
// FormatError: a fault inside a checkpoint file, and how it becomes a CheckpointError that names
// the file.

#include <stdexcept>
#include <string>

namespace torchamp::checkpoint {

/// The text is "what was found; what is expected. Likely cause?", without the file's name.
class FormatError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Rethrows the exception at hand: a FormatError, LibTorch's own error or want of memory as a
/// CheckpointError, `before` and what happened; any other as it is.
[[noreturn]] void rethrow_after(const std::string& before);

/// What `run` gives; what it throws is told by rethrow_after().
template <typename Run>
auto told_after(const std::string& before, Run run) {
  try {
    return run();
  } catch (...) {
    rethrow_after(before);
  }
}

/// Nesting that reader and writer accept; Python's own pickler stops at about the same depth.
inline constexpr int kMaxDepth = 500;

}  // namespace torchamp::checkpoint
