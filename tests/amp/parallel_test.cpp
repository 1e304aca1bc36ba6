// Autocast in LibTorch's parallel loops. Compiled with OpenMP, without which they are serial loops
// of the calling thread.

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <omp.h>

#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <torch/nn/module.h>
#include <torch/nn/parallel/data_parallel.h>
#include <torch/types.h>

#include "torchamp/amp/autocast.h"

namespace torchamp::test {
namespace {

using amp::Autocast;
using amp::AutocastState;
using amp::AutocastStateGuard;

struct TwoThreads {
  TwoThreads() {
    at::set_num_threads(2);
    omp_set_num_threads(2);  // this program's OpenMP need not be LibTorch's
  }
  ~TwoThreads() { at::set_num_threads(before); }
  int before = at::get_num_threads();
};

struct Net : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) {
    std::unique_ptr<AutocastStateGuard> guard;
    if (state) {
      guard = std::make_unique<AutocastStateGuard>(*state);
    }
    thread = std::this_thread::get_id();
    return torch::mm(x, weight);
  }
  at::Tensor weight = register_parameter("weight", torch::ones({2, 2}));
  const AutocastState* state = nullptr;
  std::thread::id thread;
};

// The dtypes that two modules run in, side by side.
std::vector<at::ScalarType> dtypes_of_parallel_apply(const AutocastState* state) {
  const TwoThreads two;
  std::vector<std::shared_ptr<Net>> nets;
  for (int i = 0; i < 2; ++i) {
    nets.push_back(std::make_shared<Net>());
    nets.back()->state = state;
  }
  const std::vector<at::Tensor> inputs(2, torch::ones({2, 2}));
  const auto outputs = torch::nn::parallel::parallel_apply(nets, inputs);
  EXPECT_NE(nets[0]->thread, nets[1]->thread);
  return {outputs[0].scalar_type(), outputs[1].scalar_type()};
}

TEST(SemanticsA21, ParallelForDoesNotCarryTheRegionAndACapturedStateDoes) {
  const TwoThreads two;
  const Autocast region(at::kCPU, at::kHalf);
  const auto state = AutocastState::capture();
  for (const bool carried : {false, true}) {
    std::atomic<int> on = 0;
    std::atomic<int> threads = 0;
    at::parallel_for(0, 2, 1, [&](int64_t, int64_t) {
      ++threads;
      const auto guard = carried ? std::make_unique<AutocastStateGuard>(state) : nullptr;
      on += at::autocast::is_autocast_enabled(at::kCPU) ? 1 : 0;
    });
    EXPECT_EQ(threads, 2);
    EXPECT_EQ(on, carried ? 2 : 1);  // the calling thread takes part, inside its region
  }
}

TEST(SemanticsA21, ParallelApplyDoesNotCarryTheRegionAndACapturedStateDoes) {
  const Autocast region(at::kCPU, at::kHalf);
  EXPECT_EQ(dtypes_of_parallel_apply(nullptr),
            (std::vector<at::ScalarType>{at::kHalf, at::kFloat}));
  const auto state = AutocastState::capture();
  EXPECT_EQ(dtypes_of_parallel_apply(&state), (std::vector<at::ScalarType>{at::kHalf, at::kHalf}));
}

}  // namespace
}  // namespace torchamp::test
