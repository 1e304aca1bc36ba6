#pragma once
// The memory of one precision, measured in a child process that holds nothing else.

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "cli/bench_report.h"

namespace torchamp::cli {

/// What the child found out.
struct ChildReport {
  PrecisionRun run;      // peaks, and one step's time and loss
  double step_ms = 0;    // of a warmed-up step, for planning
  bool gave_up = false;  // the step did not finish in time; the rest is empty
};

/// Starts a child for `precision` and waits for it, at most `timeout_ms` (0: as long as it takes).
ChildReport measure_in_child(const StepSettings& settings, int threads,
                             const std::string& allocator, train::Precision precision,
                             int timeout_ms);

/// The child's own part: measures, and prints one JSON object.
void run_memory_child(const StepSettings& settings, train::Precision precision);

}  // namespace torchamp::cli
