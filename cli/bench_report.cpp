#include "cli/bench_report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <optional>

#include "cli/info.h"

namespace torchamp::cli {
namespace {

using Json = nlohmann::ordered_json;

// The value below which the share `p` of `values` lies, linear between neighbours.
double quantile(std::vector<double> values, double p) {
  std::sort(values.begin(), values.end());
  const double position = p * static_cast<double>(values.size() - 1);
  const size_t low = static_cast<size_t>(position);
  const size_t high = std::min(low + 1, values.size() - 1);
  const double part = position - static_cast<double>(low);
  return values[low] + part * (values[high] - values[low]);
}

std::optional<double> fp32_median_ms(const std::vector<PrecisionRun>& runs) {
  for (const PrecisionRun& run : runs) {
    if (run.precision == train::Precision::kFp32 && !run.times.empty()) {
      return summarize(run.times, 1).step_ms_median;
    }
  }
  return std::nullopt;
}

// A loss that is inf or NaN has no number in JSON.
Json number_or_null(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

struct Losses {
  double first = std::numeric_limits<double>::quiet_NaN();
  double last = std::numeric_limits<double>::quiet_NaN();
};

Losses losses_of(const PrecisionRun& run, size_t num_compared) {
  if (run.losses.empty()) return {};
  const size_t count =
      std::min(run.losses.size(), run.shortened ? run.losses.size() : num_compared);
  return {run.losses.front(), run.losses[count - 1]};
}

Json result_json(const PrecisionRun& run, int64_t batch, std::optional<double> fp32_ms,
                 size_t num_compared, bool is_cpu) {
  Json json = {{"precision", train::format_precision(run.precision)}};
  Json phases = Json::object();
  if (run.times.empty()) {
    for (const char* key : {"examples_per_s", "step_ms_median", "step_ms_min"}) json[key] = nullptr;
  } else {
    const Summary figures = summarize(run.times, batch);
    json["examples_per_s"] = figures.examples_per_s;
    json["step_ms_median"] = figures.step_ms_median;
    json["step_ms_min"] = figures.step_ms_min;
    for (int i = 0; i < train::kNumPhases; ++i) {
      phases[train::format_phase(static_cast<train::Phase>(i))] = figures.phase_ms[i];
    }
  }
  const auto bytes = [](int64_t value) { return value > 0 ? Json(value) : Json(nullptr); };
  json["peak_tensor_bytes"] = bytes(run.peak_tensor_bytes);
  json["peak_process_bytes"] = bytes(run.peak_process_bytes);
  if (!is_cpu) {
    json["peak_allocated_bytes"] = bytes(run.peak_tensor_bytes);
    json["peak_reserved_bytes"] = bytes(run.peak_reserved_bytes);
  }
  json["step_ms_spread"] =
      run.times.empty() ? Json(nullptr) : Json(summarize(run.times, batch).step_ms_spread);
  json["phase_ms"] = run.times.empty() ? Json(nullptr) : phases;
  const Losses losses = losses_of(run, num_compared);
  json["loss_first"] = number_or_null(losses.first);
  json["loss_last"] = number_or_null(losses.last);
  json["skipped_steps"] = run.skipped_steps;
  json["speedup_vs_fp32"] = fp32_ms && !run.times.empty()
                                ? Json(*fp32_ms / summarize(run.times, batch).step_ms_median)
                                : Json(nullptr);
  json["allocator"] = run.allocator;
  if (!run.note.empty()) json["note"] = run.note;
  return json;
}

std::string format(const char* pattern, double value) {
  char text[64];
  std::snprintf(text, sizeof(text), pattern, value);
  return text;
}

std::string format_mib(int64_t bytes) {
  return bytes > 0 ? std::to_string((bytes + (1 << 19)) >> 20) : "-";
}

std::string format_ms(double ms) { return format(ms < 100 ? "%.2f" : "%.0f", ms); }

// Columns as wide as their widest cell, the first left, the others right.
std::string align(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths(rows.front().size(), 0);
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string padding(widths[i] - row[i].size(), ' ');
      text += i == 0 ? row[i] + padding : "  " + padding + row[i];
    }
    text += '\n';
  }
  return text;
}

std::string describe(const StepSettings& settings, int threads) {
  std::string text = settings.model + ", batch " + std::to_string(settings.batch) + ", " +
                     settings.device.str() + ", " + std::to_string(threads) + " threads, " +
                     (settings.channels_last ? "channels_last, " : "") + settings.optimizer;
  if (settings.clip > 0) text += ", clip " + format("%g", settings.clip);
  return text;
}

}  // namespace

Summary summarize(const std::vector<train::StepTimes>& times, int64_t batch) {
  std::vector<double> total;
  for (const train::StepTimes& time : times) total.push_back(time.total_ms);
  Summary result;
  result.step_ms_median = quantile(total, 0.5);
  result.step_ms_min = quantile(total, 0);
  result.step_ms_spread = quantile(total, 0.75) - quantile(total, 0.25);
  result.examples_per_s = static_cast<double>(batch) * 1000 / result.step_ms_median;
  for (size_t i = 0; i < train::kNumPhases; ++i) {
    std::vector<double> phase;
    for (const train::StepTimes& time : times) phase.push_back(time.phase_ms[i]);
    result.phase_ms[i] = quantile(phase, 0.5);
  }
  return result;
}

size_t num_compared_steps(const std::vector<PrecisionRun>& runs) {
  size_t count = 0;
  for (const PrecisionRun& run : runs) {
    if (run.shortened) continue;
    count = count == 0 ? run.losses.size() : std::min(count, run.losses.size());
  }
  return count;
}

Json report_json(const StepSettings& settings, const std::vector<PrecisionRun>& runs) {
  const train::MachineInfo machine = train::machine_info();
  Json results = Json::array();
  for (const PrecisionRun& run : runs) {
    results.push_back(result_json(run, settings.batch, fp32_median_ms(runs),
                                  num_compared_steps(runs), settings.device.is_cpu()));
  }
  return {{"machine", machine_json(machine)},
          {"model", settings.model},
          {"batch", settings.batch},
          {"threads", machine.threads},
          {"results", results}};
}

std::string report_table(const StepSettings& settings, const std::vector<PrecisionRun>& runs) {
  const size_t num_compared = num_compared_steps(runs);
  const std::optional<double> fp32_ms = fp32_median_ms(runs);
  const bool is_cpu = settings.device.is_cpu();
  std::vector<std::vector<std::string>> rows = {
      {"", "examples/s", "step ms", "min", "spread", "vs fp32", "data", "forward", "backward",
       "optimizer", "tensors MiB", is_cpu ? "process MiB" : "reserved MiB", "first loss",
       "loss at " + std::to_string(num_compared), "skipped"}};
  std::string notes;
  for (const PrecisionRun& run : runs) {
    const std::string mark = run.note.empty() ? "" : "*";
    std::vector<std::string> row = {train::format_precision(run.precision) + mark};
    if (run.times.empty()) {
      row.insert(row.end(), 9, "-");
    } else {
      const Summary figures = summarize(run.times, settings.batch);
      row.push_back(format(figures.examples_per_s < 10 ? "%.2f" : "%.1f", figures.examples_per_s));
      row.push_back(format_ms(figures.step_ms_median));
      row.push_back(format_ms(figures.step_ms_min));
      row.push_back(run.times.size() < 3 ? "-" : format_ms(figures.step_ms_spread));
      const double speedup = fp32_ms ? *fp32_ms / figures.step_ms_median : 0;
      row.push_back(fp32_ms ? format(speedup < 0.1 ? "%.3fx" : "%.2fx", speedup) : "-");
      for (const double ms : figures.phase_ms) row.push_back(format_ms(ms));
    }
    row.push_back(format_mib(run.peak_tensor_bytes));
    row.push_back(format_mib(is_cpu ? run.peak_process_bytes : run.peak_reserved_bytes));
    const Losses losses = losses_of(run, num_compared);
    row.push_back(run.losses.empty() ? "-" : format("%.4f", losses.first));
    row.push_back(run.losses.empty() || run.shortened ? "-" : format("%.4f", losses.last));
    row.push_back(std::to_string(run.skipped_steps));
    rows.push_back(row);
    if (!run.note.empty()) {
      notes += std::string("* ") + train::format_precision(run.precision) + ": " + run.note + "\n";
    }
  }
  return describe(settings, train::machine_info().threads) + "\n" + align(rows) + notes;
}

}  // namespace torchamp::cli
