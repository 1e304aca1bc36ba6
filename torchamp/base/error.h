#pragma once
// Errors that a caller can act on. A misuse of a tensor API is a c10::Error (TORCH_CHECK) as
// everywhere in LibTorch.

#include <stdexcept>
#include <string>

#include "torchamp/base/export.h"

namespace torchamp::base {

/// The common base: catch it to handle everything that TorchAmp itself reports.
class TORCHAMP_API Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The request itself is wrong: an unknown name, a value out of range, a device that is not there.
class TORCHAMP_API UsageError : public Error {
 public:
  using Error::Error;
};

/// A data file is missing, truncated or not what its name says; the text names file, byte and what
/// was expected.
class TORCHAMP_API DataError : public Error {
 public:
  using Error::Error;
};

/// A checkpoint cannot be written, read or applied; what was there before is unchanged.
class TORCHAMP_API CheckpointError : public Error {
 public:
  using Error::Error;
};

/// Training cannot go on: the loss is NaN, or too many steps in a row were skipped.
class TORCHAMP_API DivergedError : public Error {
 public:
  using Error::Error;
};

/// A signal asked the run to stop, and it did so in good order.
class TORCHAMP_API Interrupted : public Error {
 public:
  Interrupted(const std::string& what, int signal) : Error(what), signal_(signal) {}
  /// The signal's number, SIGINT or SIGTERM.
  int signal() const { return signal_; }

 private:
  int signal_;
};

}  // namespace torchamp::base
