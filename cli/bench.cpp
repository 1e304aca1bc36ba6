#include "cli/bench.h"

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <optional>
#include <system_error>

#include <unistd.h>

#include <torch/torch.h>

#include "cli/bench_memory.h"
#include "cli/bench_plan.h"
#include "cli/bench_report.h"
#include "cli/bench_step.h"
#include "cli/child.h"
#include "cli/device.h"
#include "cli/exit_code.h"
#include "cli/kernels.h"
#include "cli/memory.h"
#include "torchamp/base/error.h"
#include "torchamp/ops/install.h"

namespace torchamp::cli {
namespace {

struct BenchOptions {
  std::string model = "resnet18";
  int64_t batch = 0;  // 0: the model's default
  std::vector<std::string> precisions = {"fp32", "bf16", "fp16"};
  std::string device = "cpu";
  int threads = 0;
  std::string layout;  // empty: channels_last for models of images
  PlanOptions plan;
  std::string optimizer = "adamw";
  double clip = 0;
  std::string json;
  uint64_t seed = 0;
  std::string allocator = "on";
  std::string memory_child;  // hidden: be the child that measures this precision
};

constexpr int kNumBatches = 4;            // enough that no batch waits in the cache for its turn
constexpr int kSlowStepLimitMs = 90'000;  // after which one step of a slow precision is given up

int64_t default_batch(const std::string& model) {
  if (model == "mlp") return 256;
  if (model == "cnn") return 128;
  return model == "gpt" ? 8 : 16;
}

StepSettings check(const BenchOptions& options) {
  const std::vector<std::string>& names = models::model_names();
  if (std::find(names.begin(), names.end(), options.model) == names.end()) {
    std::string accepted;
    for (const std::string& name : names) accepted += (accepted.empty() ? "" : ", ") + name;
    throw base::UsageError("[--model] '" + options.model + "' is not a model; one of " + accepted +
                           " is accepted.");
  }
  const bool has_images = models::make_model(options.model)->input_spec().is_image;
  if (!has_images && options.layout == "channels_last") {
    throw base::UsageError("[--layout] channels_last was asked for, but " + options.model +
                           " has no images; contiguous is accepted.");
  }
  if (!options.json.empty() && options.json != "-") {
    const std::filesystem::path folder = std::filesystem::path(options.json).parent_path();
    if (std::filesystem::is_directory(options.json)) {
      throw base::UsageError("[--json] '" + options.json +
                             "' is a folder; the name of a file is accepted.");
    }
    if (!folder.empty() && !std::filesystem::is_directory(folder)) {
      throw base::UsageError("[--json] '" + options.json +
                             "' cannot be written: there is no folder '" + folder.string() + "'.");
    }
    const bool exists = access(options.json.c_str(), F_OK) == 0;
    const std::string place = exists ? options.json : folder.empty() ? "." : folder.string();
    if (access(place.c_str(), W_OK) != 0) {
      throw base::UsageError("[--json] '" + options.json +
                             "' cannot be written; a file in a folder with write permission is "
                             "accepted, or - for the output.");
    }
  }
  // Ranges let NaN pass, for it is neither below nor above.
  if (std::isnan(options.plan.seconds) || std::isnan(options.clip)) {
    throw base::UsageError(std::string(std::isnan(options.clip) ? "[--clip]" : "[--seconds]") +
                           " nan was given; a number is accepted.");
  }
  return {.model = options.model,
          .batch = options.batch > 0 ? options.batch : default_batch(options.model),
          .device = parse_device(options.device),
          .channels_last = has_images && options.layout != "contiguous",
          .optimizer = options.optimizer,
          .clip = options.clip,
          .seed = options.seed};
}

std::vector<train::Precision> parse_precisions(const std::vector<std::string>& names,
                                               c10::Device device) {
  std::vector<train::Precision> result;
  for (const std::string& name : names) {
    const train::Precision precision =
        name == "auto" ? train::recommended_precision(device) : train::parse_precision(name);
    if (std::find(result.begin(), result.end(), precision) == result.end()) {
      result.push_back(precision);
    }
  }
  return result;
}

// A benchmark has nothing to save, so a signal ends it at once, in the middle of a step too.
void end_on_signal(int signal) {
  const char text[] = "\ntorchamp: interrupted; nothing was written\n";
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, text, sizeof(text) - 1);
  kill_child();
  _exit(signal == SIGTERM ? kTerminated : kInterrupted);
}

void say(const std::string& text) { std::fprintf(stderr, "bench: %s\n", text.c_str()); }

std::string format(const char* pattern, double value) {
  char text[64];
  std::snprintf(text, sizeof(text), pattern, value);
  return text;
}

const PrecisionRun* find_fp32(const std::vector<PrecisionRun>& runs) {
  for (const PrecisionRun& run : runs) {
    if (run.precision == train::Precision::kFp32) return &run;
  }
  return nullptr;
}

// Why a precision is slow or was cut short, and its loss beside fp32's after as many steps; empty
// where there is nothing to say.
std::string explain(const PrecisionRun& run, const Estimate& estimate, const StepPlan& plan,
                    c10::Device device, const PrecisionRun* fp32) {
  std::string text;
  if (estimate.no_fast_path) {
    text = "no fast path for this type on this " + std::string(device.is_cpu() ? "CPU" : "GPU");
    if (device.is_cpu()) {
      const train::PrecisionTimes& times = train::measured_precisions();
      text += " (a matrix product runs at " + format("%.3f", times.fp32_ms / times.fp16_ms) +
              "x of fp32's speed)";
    }
  } else if (plan.shortened) {
    text = "more than four times slower than the fastest";
  }
  if (!plan.shortened) return text;
  if (estimate.gave_up) {
    return text + ": one step did not finish in " + std::to_string(kSlowStepLimitMs / 1000) + " s";
  }
  const size_t steps = run.losses.size();
  text += plan.rounds == 0 ? ": 1 step, timed in a process of its own"
                           : ": " + std::to_string(steps) + " steps, without warm-up";
  if (fp32 != nullptr && fp32->losses.size() >= steps) {
    text += "; loss at step " + std::to_string(steps) + ": " + format("%.4f", run.losses.back()) +
            ", fp32 " + format("%.4f", fp32->losses[steps - 1]);
  }
  return text;
}

// Warm-up, then rounds in which every precision takes one step; the first of a round changes, so
// that none always follows the same neighbour. Ends early after `limit_ms` of full precisions.
void run_rounds(const StepSettings& settings, const std::vector<StepPlan>& plans, double limit_ms,
                std::vector<PrecisionRun>& runs) {
  const std::vector<HostBatch> batches = make_batches(settings, kNumBatches);
  std::vector<std::unique_ptr<StepRunner>> runners(runs.size());
  int num_rounds = 0;
  double spent_ms = 0;
  const auto take_step = [&](size_t i, bool timed) {
    PrecisionRun& run = runs[i];
    const StepResult result = runners[i]->step(batches[run.losses.size() % batches.size()]);
    run.losses.push_back(result.loss);
    if (timed) run.times.push_back(result.times);
    if (timed && !run.shortened) spent_ms += result.times.total_ms;
    if (result.skipped) ++run.skipped_steps;
  };
  for (size_t i = 0; i < runs.size(); ++i) {
    if (plans[i].rounds == 0) continue;
    num_rounds = std::max(num_rounds, plans[i].rounds);
    runs[i].times.clear();  // the child's step gives way to those of the rounds
    runs[i].losses.clear();
    runs[i].skipped_steps = 0;
    runners[i] = std::make_unique<StepRunner>(settings, runs[i].precision);
    for (int step = 0; step < plans[i].warmup; ++step) take_step(i, false);
  }
  for (int round = 0; round < num_rounds; ++round) {
    if (round >= kMinRounds && spent_ms > limit_ms) break;
    for (size_t turn = 0; turn < runs.size(); ++turn) {
      const size_t i = (turn + static_cast<size_t>(round)) % runs.size();
      if (round < plans[i].rounds) take_step(i, true);
    }
  }
}

void write_json(const std::string& path, const nlohmann::ordered_json& json) {
  const std::string text = json.dump(2) + "\n";
  if (path == "-") {
    std::fputs(text.c_str(), stdout);
    return;
  }
  // A file is replaced as a whole; a pipe or a device is written to as it is.
  const bool replace = !std::filesystem::exists(path) || std::filesystem::is_regular_file(path);
  const std::string target = replace ? path + ".partial" : path;
  std::ofstream file(target);
  file << text;
  file.close();
  std::error_code error(errno, std::generic_category());
  if (file && replace) std::filesystem::rename(target, path, error);
  if (!file || (replace && error)) {
    std::error_code ignored;
    if (replace) std::filesystem::remove(target, ignored);
    throw base::Error("[--json] '" + path + "' could not be written: " + error.message() +
                      "; is the disk full?");
  }
}

void run_bench(const BenchOptions& options) {
  check_cpu_kernels();
  const ops::Installation installation;
  std::optional<ops::CachingAllocatorInstallation> allocator;
  if (options.allocator == "on") allocator.emplace();
  const StepSettings settings = check(options);
  if (options.threads > 0) torch::set_num_threads(options.threads);
  if (!options.memory_child.empty()) {
    run_memory_child(settings, train::parse_precision(options.memory_child));
    return;
  }
  const std::vector<train::Precision> precisions =
      parse_precisions(options.precisions, settings.device);
  std::signal(SIGINT, end_on_signal);
  std::signal(SIGTERM, end_on_signal);

  std::vector<Estimate> estimates;
  std::vector<PrecisionRun> runs;
  for (const train::Precision precision : precisions) {
    Estimate estimate;
    estimate.is_reference = precision == train::Precision::kFp32;
    estimate.no_fast_path =
        precision == train::Precision::kFp16 && !train::has_fast_fp16(settings.device);
    const std::string name = train::format_precision(precision);
    say("memory of " + name + ", in a process of its own" +
        (estimate.no_fast_path ? " (no fast path for it here: this may take a minute)" : ""));
    const bool limited = estimate.no_fast_path && options.plan.rounds == 0;
    const ChildReport child = measure_in_child(settings, options.threads, options.allocator,
                                               precision, limited ? kSlowStepLimitMs : 0);
    estimate.step_ms = child.step_ms;
    estimate.gave_up = child.gave_up;
    estimates.push_back(estimate);
    runs.push_back(child.run);
  }
  const bool by_time = options.plan.rounds == 0;
  const std::vector<StepPlan> plans = plan_steps(estimates, options.plan);
  for (size_t i = 0; i < runs.size(); ++i) {
    runs[i].shortened = plans[i].shortened;
    say(std::string(train::format_precision(runs[i].precision)) + ": " +
        (plans[i].rounds == 0
             ? "no more steps"
             : std::to_string(plans[i].warmup) + " warm-up and " + (by_time ? "up to " : "") +
                   std::to_string(plans[i].rounds) + " timed steps, interleaved"));
  }
  run_rounds(settings, plans,
             by_time ? options.plan.seconds * 1000 : std::numeric_limits<double>::infinity(), runs);
  for (size_t i = 0; i < runs.size(); ++i) {
    runs[i].note = explain(runs[i], estimates[i], plans[i], settings.device, find_fp32(runs));
  }
  if (options.json != "-") {
    std::printf("%s", report_table(settings, runs).c_str());
    if (ops::caching_allocator_installed()) {
      std::printf("%s\n", describe(ops::caching_allocator_statistics()).c_str());
    }
  }
  if (!options.json.empty()) write_json(options.json, report_json(settings, runs));
}

}  // namespace

void setup_bench(CLI::App& app) {
  auto options = std::make_shared<BenchOptions>();
  CLI::App* bench = app.add_subcommand(
      "bench", "Time and memory of a training step in each precision, side by side");
  bench->add_option("--model", options->model, "mlp, cnn, resnet18 or gpt")->capture_default_str();
  bench
      ->add_option("--batch", options->batch,
                   "Examples a step; by default mlp 256, cnn 128, resnet18 16, gpt 8")
      ->check(CLI::Range(1, 1 << 20));
  bench
      ->add_option("--precision", options->precisions,
                   "fp32, bf16, fp16 or auto (what torchamp info recommends), separated by commas")
      ->delimiter(',')
      ->capture_default_str();
  bench->add_option("--device", options->device, "cpu, cuda or cuda:N")->capture_default_str();
  bench->add_option("--threads", options->threads, "CPU threads; 0 leaves LibTorch's default")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  bench
      ->add_option("--layout", options->layout,
                   "channels_last or contiguous; by default channels_last for models of images")
      ->check(CLI::IsMember({"channels_last", "contiguous"}));
  bench
      ->add_option("--rounds", options->plan.rounds,
                   "Timed steps of each precision; 0 takes as many as --seconds hold, at least 3, "
                   "and cuts a precision short that is very slow here")
      ->check(CLI::Range(0, 100000))
      ->capture_default_str();
  bench->add_option("--seconds", options->plan.seconds, "Time for the rounds, in seconds")
      ->check(CLI::Range(0.001, 86400.0))
      ->capture_default_str();
  bench->add_option("--warmup", options->plan.warmup, "Steps before the rounds, not timed")
      ->check(CLI::Range(0, 100000))
      ->capture_default_str();
  bench
      ->add_option("--optimizer", options->optimizer,
                   "adamw (learning rate 0.001) or sgd (0.01, momentum 0.9)")
      ->check(CLI::IsMember({"adamw", "sgd"}))
      ->capture_default_str();
  bench->add_option("--clip", options->clip, "Largest gradient norm; 0 does not clip")
      ->check(CLI::Range(0.0, 1e30))
      ->capture_default_str();
  bench->add_option("--json", options->json,
                    "Also write the figures to this file; - prints them instead of the table");
  bench
      ->add_option(
          "--allocator", options->allocator,
          "Keep the memory of large CPU tensors for the next ones, in huge pages: on or off")
      ->check(CLI::IsMember({"on", "off"}))
      ->capture_default_str();
  bench->add_option("--seed", options->seed, "Of the weights and the data")->capture_default_str();
  bench->add_option("--memory-child", options->memory_child)->group("");
  bench->callback([options] { run_bench(*options); });
}

}  // namespace torchamp::cli
