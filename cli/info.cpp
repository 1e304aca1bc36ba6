#include "cli/info.h"

#include <array>
#include <cmath>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "cli/child.h"
#include "cli/kernels.h"
#include "cli/memory.h"
#include "torchamp/base/error.h"
#include "torchamp/base/one_line.h"
#include "torchamp/base/version.h"
#include "torchamp/checkpoint/checkpoint.h"
#include "torchamp/multi_tensor/cpu_kernels.h"
#include "torchamp/ops/choices.h"
#include "torchamp/ops/install.h"

namespace torchamp::cli {
namespace {

struct InfoOptions {
  bool json = false;
  int threads = 0;
  bool ops = false;
  std::string choices;  // a checkpoint
  bool onednn_probe = false;
};

using Json = nlohmann::ordered_json;

std::vector<std::pair<const char*, bool>> feature_list(const train::CpuFeatures& cpu) {
  return {{"avx2", cpu.avx2},
          {"avx512f", cpu.avx512f},
          {"avx512_bf16", cpu.avx512_bf16},
          {"avx512_fp16", cpu.avx512_fp16},
          {"amx_bf16", cpu.amx_bf16},
          {"amx_fp16", cpu.amx_fp16}};
}

std::string compute_capability(const train::GpuInfo& gpu) {
  return std::to_string(gpu.compute_major) + "." + std::to_string(gpu.compute_minor);
}

// oneDNN tells its choice only in its log, on stdout, when ONEDNN_VERBOSE was set before it
// started: a child multiplies two matrices, and this process reads the line.
std::string onednn_isa() {
  const ChildResult child = run_self({"info", "--onednn-probe"},
                                     {.environment = {"ONEDNN_VERBOSE=1"}, .timeout_ms = 20000});
  const std::string key = "cpu,isa:";
  const size_t begin = child.output.find(key);
  if (begin == std::string::npos) return "unknown";
  const size_t end = child.output.find('\n', begin);
  return child.output.substr(begin + key.size(), end - begin - key.size());
}

struct Advice {
  train::PrecisionTimes times;
  train::Precision cpu = train::Precision::kFp32;
  std::string warning;  // empty: nothing to warn of
};

std::string format_ratio(double ratio) {
  char text[32];
  std::snprintf(text, sizeof(text), ratio < 0.1 ? "%.3fx" : "%.2fx", ratio);
  return text;
}

Advice advise() {
  Advice advice;
  advice.times = train::measured_precisions();
  advice.cpu = train::recommend_by_times(advice.times);
  const double bf16 = advice.times.fp32_ms / advice.times.bf16_ms;
  const double fp16 = advice.times.fp32_ms / advice.times.fp16_ms;
  if (advice.cpu == train::Precision::kFp32) {
    advice.warning = "no 16-bit type is clearly faster than fp32 on this CPU (bf16 runs at " +
                     format_ratio(bf16) + " of fp32's speed, fp16 at " + format_ratio(fp16) +
                     "), so autocast is likely to slow training down here";
  } else if (fp16 < 0.5) {
    advice.warning = "fp16 runs at " + format_ratio(fp16) +
                     " of fp32's speed on this CPU; do not train in fp16 on it";
  }
  return advice;
}

Json advice_json(const train::MachineInfo& info, const Advice& advice) {
  Json json = machine_json(info);
  json["onednn_isa"] = onednn_isa();
  json["allocator"] = {{"state", ops::to_string(ops::allocator_state())},
                       {"huge_pages", ops::has_huge_pages()}};
  const train::PrecisionTimes& times = advice.times;
  json["matmul_ms"] = {{"fp32", times.fp32_ms}, {"bf16", times.bf16_ms}, {"fp16", times.fp16_ms}};
  json["matmul_speed_vs_fp32"] = {{"bf16", times.fp32_ms / times.bf16_ms},
                                  {"fp16", times.fp32_ms / times.fp16_ms}};
  Json use = {{"cpu", train::format_precision(advice.cpu)}};
  for (size_t i = 0; i < info.gpus.size(); ++i) {
    use["cuda:" + std::to_string(i)] =
        train::format_precision(train::recommend_by_compute_capability(info.gpus[i].compute_major,
                                                                       info.gpus[i].compute_minor));
  }
  json["recommended_precision"] = use;
  json["warning"] = advice.warning.empty() ? Json(nullptr) : Json(advice.warning);
  return json;
}

// "avx512 (of scalar, avx2, avx512; TORCHAMP_CPU names another)"
std::string describe_cpu_kernels() {
  std::string used, here, absent;
  for (const multi_tensor::CpuKernels& each : multi_tensor::list_cpu_kernels()) {
    if (each.in_use) used = each.name;
    std::string& list = each.runs_here ? here : absent;
    list += (list.empty() ? "" : ", ") + each.name;
  }
  return used + " (TORCHAMP_CPU chooses: " + here +
         (absent.empty() ? "" : "; not here: " + absent) + ")";
}

// "44 of LibTorch's for float16 (TORCHAMP_OPS=off leaves them; info --ops lists them)"
std::string describe_ops() {
  if (!ops::installed()) return "none (TORCHAMP_OPS is off)";
  int replaced = 0;
  for (const ops::ReplacedOp& each : ops::list()) replaced += each.state == ops::OpState::kReplaced;
  return std::to_string(replaced) +
         " of LibTorch's, for float16 (TORCHAMP_OPS=off leaves them; info --ops lists them)";
}

std::string state_of(const ops::ReplacedOp& op) {
  return ops::to_string(op.state) + (op.other.empty() ? std::string() : ": " + op.other);
}

void print_ops() {
  for (const ops::ReplacedOp& each : ops::list()) {
    std::printf("%-52s %s  %-16s %s\n", each.name.c_str(), each.dtypes.c_str(),
                state_of(each).c_str(), each.reason.c_str());
  }
}

Json ops_json() {
  Json rows = Json::array();
  for (const ops::ReplacedOp& each : ops::list()) {
    rows.push_back({{"op", each.name},
                    {"dtypes", each.dtypes},
                    {"state", ops::to_string(each.state)},
                    {"other", each.other.empty() ? Json(nullptr) : Json(each.other)},
                    {"reason", each.reason}});
  }
  return rows;
}

Json number(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

// The names of the times in JSON, in the order of ops::kWays.
constexpr std::array<const char*, ops::kWays.size()> kTimeNames = {
    "libtorch_us", "float32_us", "channels_last_us", "float32_channels_last_us"};

// The choices of kernels that a checkpoint of torchamp train holds.
void run_choices(const InfoOptions& options) {
  const base::StateDict checkpoint = checkpoint::load(options.choices);
  if (const base::Value* state = checkpoint.find("ops_choices")) {
    ops::load_choices_state_dict(state->to_dict("ops_choices"));
  }
  const ops::ChoiceCount count = ops::count_choices();
  Json rows = Json::array();
  for (const ops::Choice& each : ops::choices()) {
    Json row = {{"op", each.op}, {"arguments", each.arguments}};
    std::string times;
    for (const ops::Way way : ops::kWays) {
      const std::optional<double>& us = each.us[static_cast<size_t>(way)];
      if (!us.has_value()) continue;
      row[kTimeNames[static_cast<size_t>(way)]] = number(*us);
      char text[64];
      std::snprintf(text, sizeof(text), "  %s %.1f us", ops::to_string(way), *us);
      times += text;
    }
    row["way"] = ops::to_string(each.way);
    if (options.json) {
      rows.push_back(std::move(row));
    } else {
      std::printf("%-21s  %s %s %s\n", ops::to_string(each.way), base::one_line(each.op).c_str(),
                  base::one_line(each.arguments).c_str(), times.c_str());
    }
  }
  if (options.json) {
    const Json all = {{"count", count.all},
                      {"float32", count.float32},
                      {"channels_last", count.channels_last},
                      {"float32_channels_last", count.float32_channels_last},
                      {"choices", rows}};
    std::printf("%s\n", all.dump(2).c_str());
  } else {
    std::printf("%lld choices, %lld for float32, %lld for channels_last, %lld for both\n",
                static_cast<long long>(count.all), static_cast<long long>(count.float32),
                static_cast<long long>(count.channels_last),
                static_cast<long long>(count.float32_channels_last));
  }
}

void print_table(const train::MachineInfo& info, const Advice& advice) {
  std::string have, lack;
  for (const auto& [name, present] : feature_list(info.cpu)) {
    (present ? have : lack) += std::string(" ") + name;
  }
  const auto row = [](const char* name, const std::string& value) {
    std::printf("%-20s %s\n", name, value.c_str());
  };
  row("TorchAmp", TORCHAMP_VERSION);
  row("LibTorch", info.libtorch_version + (info.cuda_linked ? ", with CUDA" : ", CPU only"));
  row("CPU", info.cpu_name);
  row("  features", have.empty() ? "none of those that matter" : have.substr(1));
  row("  absent", lack.empty() ? "none" : lack.substr(1));
  row("  LibTorch kernels", info.cpu_capability);
  row("  TorchAmp kernels", describe_cpu_kernels());
  row("  replaced ops", describe_ops());
  row("  large tensors", describe_allocator());
  row("  oneDNN", info.onednn_version + ", " + onednn_isa());
  row("  threads", std::to_string(info.threads) + " of " + std::to_string(info.num_cpus) + " CPUs");
  const train::PrecisionTimes& times = advice.times;
  char text[160];
  std::snprintf(text, sizeof(text), "fp32 %.2f ms, bf16 %.2f ms (%s), fp16 %.2f ms (%s)",
                times.fp32_ms, times.bf16_ms, format_ratio(times.fp32_ms / times.bf16_ms).c_str(),
                times.fp16_ms, format_ratio(times.fp32_ms / times.fp16_ms).c_str());
  row("  a linear layer", text);
  row("  use", train::format_precision(advice.cpu));
  if (info.gpus.empty()) {
    row("GPU", info.cuda_linked ? "none found" : "none usable: built without CUDA");
  }
  for (size_t i = 0; i < info.gpus.size(); ++i) {
    const train::GpuInfo& gpu = info.gpus[i];
    row(("GPU cuda:" + std::to_string(i)).c_str(),
        gpu.name + ", compute capability " + compute_capability(gpu) + ", " +
            std::to_string(gpu.memory_bytes >> 20) + " MiB");
    row("  use", train::format_precision(
                     train::recommend_by_compute_capability(gpu.compute_major, gpu.compute_minor)));
  }
  if (!advice.warning.empty()) std::printf("warning: %s.\n", advice.warning.c_str());
}

void run_info(const InfoOptions& options) {
  if (options.threads > 0) torch::set_num_threads(options.threads);
  if (options.onednn_probe) {
    end_with_parent();
    torch::mm(torch::ones({64, 64}, torch::kBFloat16), torch::ones({64, 64}, torch::kBFloat16));
    torch::ones({8, 8}).to_mkldnn();  // for CPUs whose bf16 products do not go through oneDNN
    return;
  }
  check_cpu_kernels();
  if (!options.choices.empty()) {
    run_choices(options);
    return;
  }
  const ops::Installation installation;
  const ops::CachingAllocatorInstallation allocator;
  if (options.ops) {
    if (options.json) {
      std::printf("%s\n", ops_json().dump(2).c_str());
    } else {
      print_ops();
    }
    return;
  }
  const train::MachineInfo info = train::machine_info();
  const Advice advice = advise();
  if (options.json) {
    std::printf("%s\n", advice_json(info, advice).dump(2).c_str());
  } else {
    print_table(info, advice);
  }
}

}  // namespace

Json machine_json(const train::MachineInfo& info) {
  Json features = Json::object();
  for (const auto& [name, present] : feature_list(info.cpu)) features[name] = present;
  Json kernels = Json::array();
  for (const multi_tensor::CpuKernels& each : multi_tensor::list_cpu_kernels()) {
    kernels.push_back(
        {{"name", each.name}, {"runs_here", each.runs_here}, {"in_use", each.in_use}});
  }
  Json gpus = Json::array();
  for (const train::GpuInfo& gpu : info.gpus) {
    gpus.push_back({{"name", gpu.name},
                    {"compute_capability", compute_capability(gpu)},
                    {"memory_bytes", gpu.memory_bytes}});
  }
  return {{"cpu", info.cpu_name},
          {"cpu_features", features},
          {"cpu_capability", info.cpu_capability},
          {"cpu_kernels", kernels},
          {"num_cpus", info.num_cpus},
          {"threads", info.threads},
          {"gpus", gpus},
          {"cuda_linked", info.cuda_linked},
          {"torchamp", TORCHAMP_VERSION},
          {"libtorch", info.libtorch_version},
          {"onednn", info.onednn_version}};
}

void setup_info(CLI::App& app) {
  auto options = std::make_shared<InfoOptions>();
  CLI::App* info = app.add_subcommand(
      "info", "What this machine can do, and which precision to use on it (measured on the CPU)");
  info->add_flag("--json", options->json, "Print one JSON object instead of a table");
  info->add_flag("--ops", options->ops,
                 "List the ops of LibTorch that TorchAmp replaces, and why, instead");
  info->add_option("--choices", options->choices,
                   "List the kernels that a run chose for its 16-bit calls, from its checkpoint");
  info->add_option("--threads", options->threads, "CPU threads; 0 leaves LibTorch's default")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  info->add_flag("--onednn-probe", options->onednn_probe)->group("");
  info->callback([options] { run_info(*options); });
}

}  // namespace torchamp::cli
