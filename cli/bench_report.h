#pragma once
// The figures of torchamp bench: from the single steps to a table and a JSON object.

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "cli/bench_step.h"

namespace torchamp::cli {

/// What one precision did.
struct PrecisionRun {
  train::Precision precision = train::Precision::kFp32;
  std::vector<train::StepTimes> times;  // the timed steps; empty where none finished
  std::vector<double> losses;           // of every step, the warm-up too
  int skipped_steps = 0;
  bool shortened = false;
  std::string note;  // why it was shortened
  int64_t peak_tensor_bytes = 0;
  int64_t peak_process_bytes = 0;
  int64_t peak_reserved_bytes = 0;   // of a GPU's caching allocator
  nlohmann::ordered_json allocator;  // of CPU tensors, its statistics in the child; null without
};

/// The figures of one precision, as the table and the JSON show them.
struct Summary {
  double examples_per_s = 0;
  double step_ms_median = 0;
  double step_ms_min = 0;
  double step_ms_spread = 0;  // third quartile less first quartile
  double phase_ms[train::kNumPhases] = {};
};

/// Medians over `times`, which must not be empty.
Summary summarize(const std::vector<train::StepTimes>& times, int64_t batch);

/// The number of steps after which the losses of all runs that were not shortened are compared.
size_t num_compared_steps(const std::vector<PrecisionRun>& runs);

nlohmann::ordered_json report_json(const StepSettings& settings,
                                   const std::vector<PrecisionRun>& runs);

std::string report_table(const StepSettings& settings, const std::vector<PrecisionRun>& runs);

}  // namespace torchamp::cli
