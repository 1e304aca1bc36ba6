// with_autocast_state: where LibTorch runs a callable or a module on other threads, the state goes
// with it.

#include "torchamp/amp/with_autocast_state.h"

#include <memory>
#include <optional>
#include <set>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/autocast_mode.h>

#include "amp/support.h"
#include "torchamp/amp/autocast.h"

namespace torchamp::test {
namespace {

using amp::Autocast;
using amp::with_autocast_state;

at::ScalarType mm_dtype() {
  return torch::mm(torch::ones({2, 2}), torch::ones({2, 2})).scalar_type();
}

// A data set whose get() runs an op, and says in which type and on which thread.
struct MmDataset : torch::data::datasets::Dataset<MmDataset> {
  torch::data::Example<> get(size_t index) override {
    return {torch::mm(torch::ones({2, 2}), torch::ones({2, 2})),
            torch::tensor(static_cast<int64_t>(index))};
  }
  std::optional<size_t> size() const override { return 4; }
};

// The same, run in the state of the thread that made it: how a data set carries it.
struct CarryingDataset : torch::data::datasets::Dataset<CarryingDataset> {
  torch::data::Example<> get(size_t index) override {
    const amp::AutocastStateGuard guard(state);
    return MmDataset().get(index);
  }
  std::optional<size_t> size() const override { return 4; }
  amp::AutocastState state = amp::AutocastState::capture();
};

template <typename Dataset>
std::set<at::ScalarType> loaded_types(Dataset dataset) {
  auto loader = torch::data::make_data_loader<torch::data::samplers::SequentialSampler>(
      std::move(dataset), torch::data::DataLoaderOptions().batch_size(1).workers(2));
  std::set<at::ScalarType> types;
  for (auto& batch : *loader) {
    types.insert(batch.at(0).data.scalar_type());
  }
  return types;
}

TEST(WithAutocastState, ReachesTheWorkersOfADataLoader) {
  const Autocast region(at::kCPU, at::kHalf);
  using Types = std::set<at::ScalarType>;
  EXPECT_EQ(loaded_types(MmDataset()), Types{at::kFloat});
  EXPECT_EQ(loaded_types(CarryingDataset()), Types{at::kHalf});
  const auto transform = [](torch::data::Example<> example) {
    example.data = torch::mm(torch::ones({2, 2}), torch::ones({2, 2}));
    return example;
  };
  using Lambda = torch::data::transforms::Lambda<torch::data::Example<>>;
  EXPECT_EQ(loaded_types(MmDataset().map(Lambda(transform))), Types{at::kFloat});
  EXPECT_EQ(loaded_types(MmDataset().map(Lambda(with_autocast_state(transform)))),
            Types{at::kHalf});
}

TEST(WithAutocastState, KeepsTheStateOfItsWrapping) {
  std::optional<Autocast> region(std::in_place, at::kCPU, at::kHalf);
  auto wrapped = with_autocast_state([](int add) {
    const Autocast inner(at::kCPU, at::kBFloat16, {.enabled = false});
    EXPECT_EQ(mm_dtype(), at::kFloat);
    return 1 + add;
  });
  const auto type = with_autocast_state([] { return mm_dtype(); });
  region.reset();
  EXPECT_EQ(type(), at::kHalf);
  EXPECT_EQ(wrapped(2), 3);
  EXPECT_EQ(mm_dtype(), at::kFloat);
  const Autocast other(at::kCPU, at::kBFloat16);
  EXPECT_EQ(std::as_const(type)(), at::kHalf);
  EXPECT_EQ(mm_dtype(), at::kBFloat16);
  const auto off = [] {
    const Autocast disabled(at::kCPU, {}, {.enabled = false});
    return with_autocast_state([] { return mm_dtype(); });
  }();
  std::thread([&] { EXPECT_EQ(off(), at::kFloat); }).join();
  EXPECT_EQ(off(), at::kFloat);  // a region that was off is off, also inside another
  const auto throws = with_autocast_state([]() -> int { throw std::runtime_error("inside"); });
  EXPECT_THROW(throws(), std::runtime_error);
  EXPECT_EQ(mm_dtype(), at::kBFloat16);
}

TEST(WithAutocastState, TakesWhatCanOnlyBeMoved) {
  auto number = std::make_unique<int>(4);
  auto wrapped = with_autocast_state(
      [number = std::move(number)](std::unique_ptr<int> more) { return *number + *more; });
  EXPECT_EQ(wrapped(std::make_unique<int>(3)), 7);
}

TEST(WithAutocastState, WrapsAModuleWithoutChangingIt) {
  torch::nn::Sequential net(torch::nn::Linear(2, 2), torch::nn::BatchNorm1d(2));
  net->train();
  net[1]->as<torch::nn::BatchNorm1d>()->eval();  // frozen inside of a training module
  const auto wrapped = with_autocast_state(net);
  EXPECT_FALSE(net[1]->as<torch::nn::BatchNorm1d>()->is_training());
  EXPECT_TRUE(wrapped->is_training());
  ASSERT_EQ(wrapped->parameters().size(), net->parameters().size());
  EXPECT_TRUE(wrapped->parameters()[0].is_same(net->parameters()[0]));
  torch::nn::Linear linear(2, 2);
  EXPECT_TRUE(torch::equal(with_autocast_state(linear)->forward(torch::ones({1, 2})),
                           linear(torch::ones({1, 2}))));
}

}  // namespace
}  // namespace torchamp::test
