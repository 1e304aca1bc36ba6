#include "cli/bench_memory.h"

#include <cmath>
#include <csignal>
#include <cstdio>
#include <limits>
#include <stdexcept>

#include <nlohmann/json.hpp>

#include "cli/child.h"
#include "cli/memory.h"

namespace torchamp::cli {
namespace {

constexpr double kRepeatBelowMs = 5000;  // a step that costs less is repeated, for a better time

}  // namespace

void run_memory_child(const StepSettings& settings, train::Precision precision) {
  end_with_parent();
  const HostBatch batch = make_batches(settings, 1).front();
  train::TensorMemoryMeter meter;  // before the model, so that its weights count
  StepRunner runner(settings, precision);
  runner.prepare_optimizer(batch);
  meter.reset_peak();
  train::reset_device_memory_peak(settings.device);
  const StepResult first = runner.step(batch);
  // The first step also compiles kernels; a second one tells the time better.
  const bool repeat = first.times.total_ms < kRepeatBelowMs;
  const train::StepTimes times = repeat ? runner.step(batch).times : first.times;
  const train::DeviceMemory device = train::device_memory_peak(settings.device);
  const bool is_cpu = settings.device.is_cpu();
  nlohmann::json json = {
      {"peak_tensor_bytes", is_cpu ? meter.peak_bytes() : device.peak_allocated_bytes},
      {"peak_process_bytes", train::process_peak_bytes()},
      {"peak_reserved_bytes", device.peak_reserved_bytes},
      {"step_ms", times.total_ms},
      {"phase_ms", times.phase_ms},
      {"skipped", first.skipped},
      {"allocator", allocator_json()}};
  if (std::isfinite(first.loss)) json["loss"] = first.loss;
  std::printf("%s\n", json.dump().c_str());
}

ChildReport measure_in_child(const StepSettings& settings, int threads,
                             const std::string& allocator, train::Precision precision,
                             int timeout_ms) {
  const std::string name = train::format_precision(precision);
  const ChildResult child = run_self({"bench",
                                      "--memory-child",
                                      name,
                                      "--model",
                                      settings.model,
                                      "--batch",
                                      std::to_string(settings.batch),
                                      "--device",
                                      settings.device.str(),
                                      "--threads",
                                      std::to_string(threads),
                                      "--optimizer",
                                      settings.optimizer,
                                      "--clip",
                                      std::to_string(settings.clip),
                                      "--seed",
                                      std::to_string(settings.seed),
                                      "--allocator",
                                      allocator,
                                      "--layout",
                                      settings.channels_last ? "channels_last" : "contiguous"},
                                     {.environment = {}, .timeout_ms = timeout_ms});
  ChildReport report;
  report.run.precision = precision;
  report.gave_up = child.timed_out;
  if (child.timed_out) return report;
  const nlohmann::json json = nlohmann::json::parse(child.output, nullptr, false);
  if (child.exit_code != 0 || json.is_discarded()) {
    throw std::runtime_error("[bench] the process that measures the memory of " + name +
                             " ended with code " + std::to_string(child.exit_code) +
                             (child.exit_code == 128 + SIGKILL
                                  ? "; was the machine out of memory? A smaller --batch needs less."
                                  : "."));
  }
  report.step_ms = json["step_ms"];
  report.run.peak_tensor_bytes = json["peak_tensor_bytes"];
  report.run.peak_process_bytes = json["peak_process_bytes"];
  report.run.peak_reserved_bytes = json["peak_reserved_bytes"];
  report.run.times = {{.total_ms = report.step_ms, .phase_ms = json["phase_ms"]}};
  report.run.losses = {json.value("loss", std::numeric_limits<double>::quiet_NaN())};
  report.run.skipped_steps = json["skipped"] ? 1 : 0;
  report.run.allocator = json["allocator"];
  return report;
}

}  // namespace torchamp::cli
