// One side of a comparison, in C++. Obeys, a line each, on the standard input:
//   run N      does the work N times; answers with the milliseconds of each
//   save FILE  writes what must agree with the other sides; answers "ok"
//   share N    N more runs; answers with the part of their time spent in matrix kernels
//   memory     answers with the allocator's hits, misses, and its peaks of live and held bytes
//   quit
// It says "ready" first. With mode=start it writes what all sides begin with, to the file that
// start= names; with mode=peak it prints the most bytes that tensors hold during a run, once the
// first ones have made what stays; with mode=profile, where the time of a run goes.
//
//   bench_side work=step side=ours model=mlp precision=bf16 start=FILE threads=2

#include <cstdio>
#include <exception>
#include <iostream>
#include <sstream>
#include <stdexcept>

#include <ATen/Parallel.h>
#include <torch/version.h>

#include "bench/sides/side.h"
#include "torchamp/checkpoint/checkpoint.h"
#include "torchamp/ops/caching_allocator.h"
#include "torchamp/train/meter.h"

namespace torchamp::bench {

Settings::Settings(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const size_t equals = word.find('=');
    if (equals == std::string::npos) {
      throw std::invalid_argument("'" + word + "' came; name=value is accepted");
    }
    values_[word.substr(0, equals)] = word.substr(equals + 1);
  }
}

const std::string& Settings::at(const std::string& name) const {
  const auto found = values_.find(name);
  if (found == values_.end()) throw std::invalid_argument(name + "= is missing");
  return found->second;
}

std::string Settings::get(const std::string& name, const std::string& otherwise) const {
  const auto found = values_.find(name);
  return found == values_.end() ? otherwise : found->second;
}

namespace {

std::unique_ptr<Side> make_side(const Settings& settings) {
  const std::string& work = settings.at("work");
  if (work == "step") return make_step(settings);
  if (work == "phase") return make_phase(settings);
  throw std::invalid_argument("work=" + work + " came; step or phase is accepted");
}

void serve(Side& side) {
  std::printf("ready\n");
  std::fflush(stdout);
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string order;
    words >> order;
    if (order == "quit") return;
    if (order == "run") {
      int runs = 0;
      words >> runs;
      for (int i = 0; i < runs; ++i) std::printf("%s%.4f", i > 0 ? " " : "", side.run());
      std::printf("\n");
    } else if (order == "save") {
      std::string file;
      words >> file;
      checkpoint::save(file, side.result());
      std::printf("ok\n");
    } else if (order == "share") {
      int runs = 0;
      words >> runs;
      std::printf("%.4f\n", op_times(side, runs).matrix_share);
    } else if (order == "memory") {
      const ops::AllocatorStatistics now = ops::caching_allocator_statistics();
      std::printf("%lld %lld %lld %lld\n", static_cast<long long>(now.hits),
                  static_cast<long long>(now.misses), static_cast<long long>(now.peak_live_bytes),
                  static_cast<long long>(now.peak_held_bytes));
    } else {
      throw std::invalid_argument("the order '" + line +
                                  "' came; run, save, share, memory or quit");
    }
    std::fflush(stdout);
  }
}

int64_t peak_bytes(const Settings& settings) {
  train::TensorMemoryMeter meter;  // before the side, so that its weights count
  const std::unique_ptr<Side> side = make_side(settings);
  for (int i = 0; i < 2; ++i) side->run();
  meter.reset_peak();
  side->run();
  return meter.peak_bytes();
}

void print_profile(const Settings& settings) {
  const std::unique_ptr<Side> side = make_side(settings);
  for (int i = 0; i < 3; ++i) side->run();
  const OpTimes times = op_times(*side, std::stoi(settings.get("runs", "5")));
  std::printf("%.1f ms a run, %.0f %% of it in matrix ops\n", times.run_ms,
              100 * times.matrix_share);
  for (const OpTime& op : times.ops) {
    if (op.ms < 0.002 * times.run_ms) break;
    std::printf("%5.1f %% %9.3f ms %5d  %s\n", 100 * op.ms / times.run_ms, op.ms, op.calls,
                op.name.c_str());
  }
}

void run(const Settings& settings) {
  const std::string mode = settings.get("mode", "serve");
  if (mode == "version") {
    std::printf("%s\n", TORCH_VERSION);
    return;
  }
  at::set_num_threads(std::stoi(settings.at("threads")));
  if (mode == "start") {
    const bool is_step = settings.at("work") == "step";
    checkpoint::save(settings.at("start"),
                     is_step ? start_of_step(settings) : start_of_phase(settings));
  } else if (mode == "peak") {
    std::printf("%lld\n", static_cast<long long>(peak_bytes(settings)));
  } else if (mode == "profile") {
    print_profile(settings);
  } else {
    serve(*make_side(settings));
  }
}

}  // namespace
}  // namespace torchamp::bench

int main(int argc, char** argv) {
  try {
    torchamp::bench::run({argc, argv});
  } catch (const std::exception& error) {
    std::printf("error\n");
    std::fprintf(stderr, "bench_side: %s\n", error.what());
    return 1;
  }
  return 0;
}
