#pragma once
// A side of a comparison: one way to do a piece of work, which obeys orders over a pipe. Who takes
// turns with whom is decided in bench/run.py.

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "torchamp/base/state_dict.h"

namespace torchamp::bench {

/// What a side is made from: the words "name=value" of the command line.
class Settings {
 public:
  Settings(int argc, char** argv);

  /// Errors: std::invalid_argument when nothing was given for `name`.
  const std::string& at(const std::string& name) const;
  std::string get(const std::string& name, const std::string& otherwise) const;

 private:
  std::map<std::string, std::string> values_;
};

class Side {
 public:
  Side() = default;
  virtual ~Side() = default;
  Side(const Side&) = delete;
  Side& operator=(const Side&) = delete;

  /// Does the work once and returns its milliseconds; making it ready is not timed.
  virtual double run() = 0;
  /// What must agree with the other sides after as many runs: lists of numbers, tensors by name.
  virtual base::StateDict result() = 0;
};

/// A whole training step: side ours or libtorch.
std::unique_ptr<Side> make_step(const Settings& settings);
/// What follows backward() on gradients that are given: side ours, libtorch, or one of
/// make_memory().
std::unique_ptr<Side> make_phase(const Settings& settings);
/// The memory beside the phase: side mul_ (an in-place mul_ over 256 MB) or traffic (what the phase
/// of 20 million parameters reads and writes, without its arithmetic).
std::unique_ptr<Side> make_memory(const Settings& settings);

/// Weights and data that all sides of a comparison begin with, C++ and Python alike.
base::StateDict start_of_step(const Settings& settings);
base::StateDict start_of_phase(const Settings& settings);

/// Where the time of a run goes. An op's time is its own, without the ops that it calls; a matrix
/// op (products, convolutions and attention, forward and backward) has all of it.
struct OpTime {
  std::string name;
  double ms;  ///< a run
  int calls;  ///< a run
};
struct OpTimes {
  double run_ms = 0;
  double matrix_share = 0;  ///< the part of the time that was spent in matrix ops
  std::vector<OpTime> ops;  ///< the longest first
};
OpTimes op_times(Side& side, int runs);

}  // namespace torchamp::bench
