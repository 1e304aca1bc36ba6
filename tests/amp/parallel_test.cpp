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
#include <torch/nn/cloneable.h>
#include <torch/nn/module.h>
#include <torch/nn/parallel/data_parallel.h>
#include <torch/types.h>

#include "torchamp/amp/autocast.h"
#include "torchamp/amp/with_autocast_state.h"

namespace torchamp::test {
namespace {

using amp::Autocast;
using amp::AutocastState;
using amp::AutocastStateGuard;
using amp::with_autocast_state;

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

at::ScalarType mm_dtype() {
  return torch::mm(torch::ones({2, 2}), torch::ones({2, 2})).scalar_type();
}

TEST(WithAutocastState, ReachesParallelFor) {
  const TwoThreads two;
  const Autocast region(at::kCPU, at::kHalf, {.cache_enabled = false});
  std::atomic<int> num_half{0};
  std::atomic<int> num_cached{0};
  const auto look = [&](int64_t begin, int64_t end) {
    num_half += mm_dtype() == at::kHalf ? static_cast<int>(end - begin) : 0;
    num_cached += at::autocast::is_autocast_cache_enabled() ? 1 : 0;
  };
  at::parallel_for(0, 8, 1, look);
  EXPECT_EQ(num_half.exchange(0), 4);  // the half that the calling thread ran
  num_cached = 0;
  at::parallel_for(0, 8, 1, with_autocast_state(look));
  EXPECT_EQ(num_half, 8);
  EXPECT_EQ(num_cached, 0);
  EXPECT_EQ(mm_dtype(), at::kHalf);
}

struct Probe : torch::nn::Cloneable<Probe> {
  Probe() { reset(); }
  void reset() override { w = register_parameter("w", torch::ones({2, 2})); }
  at::Tensor forward(const at::Tensor& x) {
    thread = std::this_thread::get_id();
    return torch::mm(x, w);
  }
  at::Tensor w;
  std::thread::id thread;
};

TEST(WithAutocastState, ReachesParallelApply) {
  const TwoThreads two;
  std::vector<std::shared_ptr<Probe>> modules;
  for (int i = 0; i < 4; ++i) {
    modules.push_back(std::make_shared<Probe>());
  }
  const std::vector<at::Tensor> inputs(4, torch::ones({2, 2}));
  const Autocast region(at::kCPU, at::kHalf);
  const auto plain = torch::nn::parallel::parallel_apply(modules, inputs);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(plain[i].scalar_type(),
              modules[i]->thread == std::this_thread::get_id() ? at::kHalf : at::kFloat);
  }
  auto carried = with_autocast_state(modules);
  for (const auto& output : torch::nn::parallel::parallel_apply(carried, inputs)) {
    EXPECT_EQ(output.scalar_type(), at::kHalf);
    output.to(at::kFloat).sum().backward();
  }
  for (const auto& module : modules) {
    EXPECT_TRUE(torch::equal(module->w.grad(), torch::full({2, 2}, 2.0F)));
  }
}

// data_parallel itself links with CUDA's libraries only; these two calls are what it makes.
TEST(WithAutocastState, ReachesTheReplicasOfDataParallel) {
  const TwoThreads two;
  const auto module = std::make_shared<Probe>();
  const auto x = torch::ones({2, 2});
  const Autocast region(at::kCPU, at::kHalf);
  const std::vector<at::Device> devices{at::kCPU, at::kCPU};
  auto replicas = torch::nn::parallel::replicate(with_autocast_state(module), devices);
  auto sum = torch::zeros({});
  for (const auto& replica : torch::nn::parallel::parallel_apply(replicas, {x, x}, devices)) {
    EXPECT_EQ(replica.scalar_type(), at::kHalf);
    sum = sum + replica.sum();
  }
  sum.backward();
  EXPECT_TRUE(torch::equal(module->w.grad(), torch::full({2, 2}, 4.0F)));
}

}  // namespace
}  // namespace torchamp::test
