#pragma once
// How a run looks to a person: one bar that moves on a terminal, plain lines elsewhere.

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>

#include "torchamp/base/export.h"
#include "torchamp/train/metrics.h"

namespace torchamp::train {

struct ProgressOptions {
  bool is_terminal = false;
  int width = 80;            ///< columns of the terminal
  int64_t steps_a_line = 0;  ///< plain lines: one in so many steps; 0: ten an epoch
  bool is_text = false;      ///< perplexity instead of accuracy
};

/// Writes a run's progress to a file that the caller owns, in ASCII.
class TORCHAMP_API Progress {
 public:
  Progress(std::FILE* out, ProgressOptions options);

  /// For TrainerCallbacks of the same names.
  ///
  /// Errors: base::Error when the output is gone: a closed pipe, a full disk.
  void on_step(const StepMetrics& metrics);
  void on_epoch(const EpochMetrics& metrics);
  void on_message(const std::string& text);

  /// Takes the bar off the terminal, so that what comes next begins on a clean line.
  void clear();

 private:
  void line(const std::string& text);
  void bar(const StepMetrics& metrics);
  void put(const std::string& text);

  std::FILE* out_;
  ProgressOptions options_;
  bool has_bar_ = false;
  std::chrono::steady_clock::time_point last_bar_;
};

}  // namespace torchamp::train
