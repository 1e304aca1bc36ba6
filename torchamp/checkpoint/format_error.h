#pragma once
// FormatError: a fault inside a checkpoint file. load() turns it into a CheckpointError that names
// the file.

#include <stdexcept>

namespace torchamp::checkpoint {

/// The text is "what was found; what is expected. Likely cause?", without the file's name.
class FormatError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Nesting that reader and writer accept; Python's own pickler stops at about the same depth.
inline constexpr int kMaxDepth = 500;

}  // namespace torchamp::checkpoint
