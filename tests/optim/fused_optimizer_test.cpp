// AdamW, Adam and SGD against Python's loops, bit for bit, over options, dtypes and layouts.

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "optim/python_loops.h"
#include "torchamp/kernels/cpu/table.h"
#include "torchamp/multi_tensor/fused_step.h"
#include "torchamp/torchamp.h"

namespace torchamp {
namespace {

using testing::adam_loop;
using testing::LoopState;
using testing::num_different;
using testing::sgd_loop;

constexpr int kSteps = 12;

at::Tensor random(at::IntArrayRef shape, at::ScalarType dtype) {
  return torch::randn(shape, torch::dtype(dtype));
}

std::vector<at::Tensor> clones(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> copies;
  for (const at::Tensor& tensor : tensors) {
    copies.push_back(torch::empty_strided(tensor.sizes(), tensor.strides(), tensor.options())
                         .copy_(tensor.detach()));
  }
  return copies;
}

// Lengths around lanes, blocks and ranges; no element; one.
std::vector<at::Tensor> parameters_of(at::ScalarType dtype) {
  std::vector<at::Tensor> parameters;
  for (const int64_t n : {0, 1, 15, 16, 17, 511, 512, 513, 70001}) {
    parameters.push_back(random({n}, dtype).requires_grad_());
  }
  parameters.push_back(random({3, 5, 7}, dtype).requires_grad_());
  parameters.push_back(torch::tensor(0.5, torch::dtype(dtype)).requires_grad_());
  return parameters;
}

struct AdamCase {
  const char* name;
  bool decoupled, amsgrad;
  double weight_decay, lr, beta1;
};

class AdamBits : public ::testing::TestWithParam<std::tuple<AdamCase, at::ScalarType>> {};

TEST_P(AdamBits, ArePythons) {
  const auto& [c, dtype] = GetParam();
  torch::manual_seed(1);
  std::vector<at::Tensor> parameters = parameters_of(dtype);
  const std::vector<at::Tensor> expected = clones(parameters);
  std::vector<LoopState> states(parameters.size());
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  if (c.decoupled) {
    optimizer = std::make_unique<optim::AdamW>(parameters, optim::AdamWOptions(c.lr)
                                                               .betas({c.beta1, 0.999})
                                                               .weight_decay(c.weight_decay)
                                                               .amsgrad(c.amsgrad));
  } else {
    optimizer = std::make_unique<optim::Adam>(parameters, optim::AdamOptions(c.lr)
                                                              .betas({c.beta1, 0.999})
                                                              .weight_decay(c.weight_decay)
                                                              .amsgrad(c.amsgrad));
  }
  for (int step = 0; step < kSteps; ++step) {
    for (size_t i = 0; i < parameters.size(); ++i) {
      if (step == 3 && i == 4) {  // a parameter that misses a step has a step count of its own
        parameters[i].mutable_grad().reset();
        continue;
      }
      parameters[i].mutable_grad() = random(parameters[i].sizes(), dtype) * std::pow(0.3, step);
      adam_loop(expected[i], parameters[i].grad(), states[i], c.lr, c.beta1, 0.999, 1e-8,
                c.weight_decay, c.decoupled, c.amsgrad);
    }
    optimizer->step();
  }
  for (size_t i = 0; i < parameters.size(); ++i) {
    EXPECT_EQ(num_different(parameters[i], expected[i]), 0) << c.name << " parameter " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(
    FusedOptimizer, AdamBits,
    ::testing::Combine(::testing::Values(AdamCase{"AdamW", true, false, 0.01, 1e-3, 0.9},
                                         AdamCase{"AdamW_amsgrad", true, true, 0.1, 1e-2, 0.9},
                                         AdamCase{"AdamW_no_decay", true, false, 0, 1e-3, 0.4},
                                         AdamCase{"Adam", false, false, 0, 1e-3, 0.9},
                                         AdamCase{"Adam_L2_amsgrad", false, true, 0.1, 1e-2, 0.9}),
                       ::testing::Values(torch::kFloat, torch::kDouble, torch::kComplexFloat,
                                         torch::kComplexDouble)),
    [](const auto& info) {
      return std::string(std::get<0>(info.param).name) + "_" +
             c10::toString(std::get<1>(info.param));
    });

struct SgdCase {
  const char* name;
  double momentum, dampening, weight_decay;
  bool nesterov;
};

class SgdBits : public ::testing::TestWithParam<std::tuple<SgdCase, at::ScalarType>> {};

TEST_P(SgdBits, ArePythons) {
  const auto& [c, dtype] = GetParam();
  torch::manual_seed(2);
  std::vector<at::Tensor> parameters = parameters_of(dtype);
  const std::vector<at::Tensor> expected = clones(parameters);
  std::vector<LoopState> states(parameters.size());
  optim::SGD optimizer(parameters, optim::SGDOptions(0.05)
                                       .momentum(c.momentum)
                                       .dampening(c.dampening)
                                       .weight_decay(c.weight_decay)
                                       .nesterov(c.nesterov));
  for (int step = 0; step < kSteps; ++step) {
    for (size_t i = 0; i < parameters.size(); ++i) {
      parameters[i].mutable_grad() = random(parameters[i].sizes(), dtype);
      sgd_loop(expected[i], parameters[i].grad(), states[i], 0.05, c.momentum, c.dampening,
               c.weight_decay, c.nesterov);
    }
    optimizer.step();
  }
  for (size_t i = 0; i < parameters.size(); ++i) {
    EXPECT_EQ(num_different(parameters[i], expected[i]), 0) << c.name << " parameter " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(
    FusedOptimizer, SgdBits,
    ::testing::Combine(::testing::Values(SgdCase{"plain", 0, 0, 0, false},
                                         SgdCase{"decay", 0, 0, 0.1, false},
                                         SgdCase{"momentum", 0.9, 0, 0, false},
                                         SgdCase{"damped", 0.9, 0.5, 0.1, false},
                                         SgdCase{"nesterov", 0.9, 0, 0.1, true}),
                       ::testing::Values(torch::kFloat, torch::kDouble, torch::kComplexFloat)),
    [](const auto& info) {
      return std::string(std::get<0>(info.param).name) + "_" +
             c10::toString(std::get<1>(info.param));
    });

// A parameter and a gradient in some layout, with the values of a contiguous pair.
struct Layouts {
  const char* name;
  std::function<at::Tensor(const at::Tensor&)> parameter, gradient;
};

at::Tensor channels_last(const at::Tensor& x) {
  return x.contiguous(at::MemoryFormat::ChannelsLast);
}
at::Tensor contiguous(const at::Tensor& x) { return x.contiguous(); }
at::Tensor transposed(const at::Tensor& x) {
  return x.transpose(0, 1).contiguous().transpose(0, 1);
}
at::Tensor sliced(const at::Tensor& x) {  // every second element of a larger tensor
  at::Tensor larger = torch::full({x.size(0), x.size(1), x.size(2), 2 * x.size(3)}, 7.0);
  at::Tensor slice = larger.slice(3, 0, at::nullopt, 2);
  slice.copy_(x);
  return slice;
}
at::Tensor misaligned(const at::Tensor& x) {
  at::Tensor larger = torch::empty({x.numel() + 1});
  at::Tensor rest = larger.slice(0, 1).view(x.sizes());
  rest.copy_(x);
  return rest;
}

TEST(FusedOptimizer, TakesAnyStridesOfParameterAndGradient) {
  const Layouts all[] = {{"contiguous", contiguous, contiguous},
                         {"grad contiguous", channels_last, contiguous},
                         {"grad channels_last", contiguous, channels_last},
                         {"both transposed", transposed, transposed},
                         {"grad transposed", contiguous, transposed},
                         {"grad sliced", contiguous, sliced},
                         {"parameter sliced", sliced, contiguous},
                         {"both sliced", sliced, sliced},
                         {"misaligned", misaligned, misaligned}};
  for (const Layouts& layout : all) {
    torch::manual_seed(3);
    const at::Tensor start = torch::randn({4, 6, 3, 5});
    at::Tensor parameter = layout.parameter(start.clone());
    at::Tensor leaf = parameter.detach().requires_grad_();
    at::Tensor expected = start.clone();
    LoopState adam, sgd;
    optim::AdamW adamw({leaf}, optim::AdamWOptions(1e-2));
    optim::SGD momentum({leaf}, optim::SGDOptions(0.1).momentum(0.9));
    for (int step = 0; step < 3; ++step) {
      const at::Tensor gradient = torch::randn({4, 6, 3, 5});
      leaf.mutable_grad() = layout.gradient(gradient);
      adamw.step();
      momentum.step();
      adam_loop(expected, gradient, adam, 1e-2, 0.9, 0.999, 1e-8, 1e-2, true, false);
      sgd_loop(expected, gradient, sgd, 0.1, 0.9, 0, 0, false);
      EXPECT_EQ(num_different(leaf.grad(), gradient), 0) << layout.name;
    }
    EXPECT_EQ(num_different(leaf, expected), 0) << layout.name;
  }
}

TEST(FusedOptimizer, LeavesWhatLiesBetweenASlicesElements) {
  at::Tensor larger = torch::full({8, 2}, 7.0);
  at::Tensor slice = larger.select(1, 0).detach().requires_grad_();
  slice.mutable_grad() = torch::ones({8});
  optim::SGD optimizer({slice}, optim::SGDOptions(1.0));
  optimizer.step();
  EXPECT_TRUE(torch::equal(larger.select(1, 1), torch::full({8}, 7.0)));
  EXPECT_TRUE(torch::equal(larger.select(1, 0), torch::full({8}, 6.0)));
}

TEST(FusedOptimizer, RefusesBeforeAnythingHasChanged) {
  const auto refused = [](const at::Tensor& bad, const at::Tensor& gradient, const char* part) {
    at::Tensor good = torch::ones({2}).requires_grad_();
    good.mutable_grad() = torch::ones({2});
    at::Tensor leaf = bad;
    leaf.mutable_grad() = gradient;
    optim::AdamW optimizer({good, leaf}, optim::AdamWOptions(0.1));
    try {
      optimizer.step();
      ADD_FAILURE() << "accepted: " << part;
    } catch (const c10::Error& error) {
      EXPECT_NE(std::string(error.what_without_backtrace()).find(part), std::string::npos)
          << error.what_without_backtrace();
    }
    EXPECT_TRUE(torch::equal(good, torch::ones({2})));
    EXPECT_TRUE(optimizer.state().empty());
  };
  const at::Tensor leaf = torch::ones({4, 3}).requires_grad_();
  const at::Tensor indices = torch::zeros({1, 1}, torch::kLong);
  refused(leaf, torch::sparse_coo_tensor(indices, torch::ones({1, 3}), {4, 3}), "is sparse");
  refused(leaf, torch::ones({4, 3}).to_sparse_csr(), "SparseCsr");
  refused(torch::ones({1}).expand({4}).detach().requires_grad_(), torch::ones({4}), "share memory");
  refused(torch::ones({3}, torch::kDouble).requires_grad_(), torch::ones({3}), "double precision");
}

TEST(FusedOptimizer, SgdTakesSparseGradients) {
  at::Tensor weight = torch::arange(12, torch::kFloat).view({4, 3}).requires_grad_();
  const at::Tensor expected = weight.detach().clone();
  const at::Tensor indices = torch::tensor({{2, 0, 2}});
  const at::Tensor values = torch::randn({3, 3});
  weight.mutable_grad() = torch::sparse_coo_tensor(indices, values, {4, 3});
  expected.add_(weight.grad(), -0.5);  // as Python's loop
  optim::SGD optimizer({weight}, optim::SGDOptions(0.5));
  optimizer.step();
  EXPECT_EQ(num_different(weight, expected), 0);
}

TEST(FusedOptimizer, RaisesTheVersionOfEveryTensorItWrites) {
  at::Tensor weight = torch::ones({100}).requires_grad_();
  weight.mutable_grad() = torch::full({100}, 2.0);
  optim::AdamW optimizer({weight}, optim::AdamWOptions(0.1), {.max_grad_norm = 1.0});
  optimizer.step();
  auto& state = static_cast<torch::optim::AdamWParamState&>(
      *optimizer.state().at(weight.unsafeGetTensorImpl()));
  const auto versions = [&] {
    return std::vector<uint32_t>{static_cast<uint32_t>(weight._version()),
                                 static_cast<uint32_t>(weight.grad()._version()),
                                 static_cast<uint32_t>(state.exp_avg()._version()),
                                 static_cast<uint32_t>(state.exp_avg_sq()._version())};
  };
  const auto before = versions();
  weight.mutable_grad().fill_(2.0);
  optimizer.step();
  const auto after = versions();
  for (size_t i = 0; i < before.size(); ++i) EXPECT_GT(after[i], before[i]) << i;
  // Autograd's own check: the weight was saved for a backward pass and then stepped.
  at::Tensor loss = (weight * weight).sum();
  weight.mutable_grad() = torch::ones({100});
  optimizer.step();
  EXPECT_THROW(loss.backward(), c10::Error);
}

TEST(FusedOptimizer, ATiedWeightThatIsListedTwiceIsUpdatedOnce) {
  at::Tensor weight = torch::ones({3}).requires_grad_();
  weight.mutable_grad() = torch::ones({3});
  optim::SGD optimizer({weight, weight}, optim::SGDOptions(0.25));
  optimizer.step();
  EXPECT_TRUE(torch::equal(weight, torch::full({3}, 0.75)));
}

TEST(FusedOptimizer, TwoParametersMayShareOneGradient) {
  at::Tensor a = torch::ones({3}).requires_grad_(), b = torch::ones({3}).requires_grad_();
  a.mutable_grad() = torch::full({3}, 8.0);
  b.mutable_grad() = a.grad();
  amp::GradScaler scaler({.init_scale = 8});
  scaler.scale(torch::zeros({}));
  optim::SGD optimizer({a, b}, optim::SGDOptions(0.25));
  EXPECT_TRUE(scaler.step(optimizer).applied());
  EXPECT_TRUE(torch::equal(a, torch::full({3}, 0.75)));
  EXPECT_TRUE(torch::equal(b, torch::full({3}, 0.75)));
  EXPECT_TRUE(torch::equal(a.grad(), torch::ones({3})));
}

TEST(FusedOptimizer, DropsIntoGroupsClosuresAndSchedulers) {
  torch::nn::Linear linear(3, 2);
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(std::vector<at::Tensor>{linear->weight},
                      std::make_unique<optim::AdamWOptions>(optim::AdamWOptions(0.5)));
  optim::AdamW optimizer(groups, optim::AdamWOptions(1e-3));
  optimizer.add_param_group(torch::optim::OptimizerParamGroup({linear->bias}));
  torch::optim::StepLR scheduler(optimizer, 1, 0.5);
  int calls = 0;
  const at::Tensor loss = optimizer.step([&] {
    ++calls;
    optimizer.zero_grad();
    at::Tensor value = linear->forward(torch::ones({1, 3})).sum();
    value.backward();
    return value;
  });
  scheduler.step();  // LibTorch's first one leaves the rate
  scheduler.step();
  EXPECT_EQ(calls, 1);
  EXPECT_TRUE(loss.defined());
  EXPECT_EQ(optimizer.param_groups()[0].options().get_lr(), 0.25);
  EXPECT_EQ(optimizer.state().size(), 2U);
  // It is a torch::optim::AdamW to its users, archives included.
  torch::serialize::OutputArchive archive;
  optimizer.save(archive);
  EXPECT_NE(dynamic_cast<torch::optim::AdamW*>(static_cast<torch::optim::Optimizer*>(&optimizer)),
            nullptr);
}

TEST(FusedOptimizer, GivesTheSameBitsForEveryTableAndNumberOfThreads) {
  const int threads = at::get_num_threads();
  const kernels::KernelTable& table = multi_tensor::cpu_kernels();
  std::vector<at::Tensor> results;
  for (const kernels::KernelTable* each : kernels::cpu_tables()) {
    if (!each->runs_here()) continue;
    for (const int num_threads : {1, 2, 3}) {
      kernels::use_cpu_table(*each);
      at::set_num_threads(num_threads);
      torch::manual_seed(4);
      at::Tensor weight = torch::randn({300001}).requires_grad_();
      optim::AdamW optimizer({weight}, optim::AdamWOptions(1e-2),
                             {.max_grad_norm = 1.0, .moments = optim::Moments::kBFloat16});
      for (int step = 0; step < 3; ++step) {
        weight.mutable_grad() = torch::randn({300001});
        optimizer.step();
      }
      results.push_back(weight.detach().clone());
      results.push_back(optimizer.last_grad_norm());
    }
  }
  at::set_num_threads(threads);
  kernels::use_cpu_table(table);
  for (size_t i = 2; i < results.size(); ++i) {
    EXPECT_EQ(num_different(results[i], results[i % 2]), 0) << i;
  }
}

std::string message_of(const std::function<void()>& run) {
  try {
    run();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

TEST(FusedOptimizer, RefusesMomentsOfAnotherShape) {
  at::Tensor p = torch::ones({10, 4}).requires_grad_();
  optim::AdamW optimizer({p}, optim::AdamWOptions(0.1));
  p.mutable_grad() = torch::ones({10, 4});
  optimizer.step();
  p.set_data(torch::ones({2000, 4}));
  p.mutable_grad() = torch::ones({2000, 4});
  EXPECT_NE(message_of([&] { optimizer.step(); }).find("has shape [10, 4]"), std::string::npos);
  EXPECT_TRUE(torch::equal(p, torch::ones({2000, 4})));
}

TEST(FusedOptimizer, ConvertsMomentsWhenTheParameterChangesItsType) {
  at::Tensor p = torch::ones({100}).requires_grad_();
  optim::AdamW optimizer({p}, optim::AdamWOptions(0.1).weight_decay(0));
  for (const auto dtype : {torch::kFloat, torch::kDouble, torch::kFloat}) {
    p.set_data(p.detach().to(dtype));
    p.mutable_grad() = torch::ones({100}, dtype);
    optimizer.step();
  }
  EXPECT_NEAR(p[0].item<double>(), 0.7, 1e-6);  // a constant gradient moves it by lr each step
}

TEST(FusedOptimizer, EightBitMomentsFollowAChangeOfLayout) {
  torch::manual_seed(11);
  at::Tensor p = torch::zeros({2, 512, 4, 4}).requires_grad_();
  optim::SGD optimizer({p}, optim::SGDOptions(0).momentum(0.999),
                       {.moments = optim::Moments::k8Bit});
  p.mutable_grad() = torch::randn({2, 512, 4, 4}) * torch::rand({2, 512, 1, 1}).pow(8);
  optimizer.step();
  const auto buffer = [&] {
    const base::StateDict dict = optim::optimizer_state_dict(optimizer);
    return dict.at("state")
        .to_dict("")
        .at(int64_t{0})
        .to_dict("")
        .at("momentum_buffer")
        .to_tensor("")
        .clone();
  };
  const at::Tensor before = buffer();
  p.set_data(p.detach().contiguous(at::MemoryFormat::ChannelsLast));
  p.mutable_grad() = torch::zeros({2, 512, 4, 4});
  optimizer.step();
  // Coded three times, each time by at most an eighth, or a step of the block's smallest.
  EXPECT_TRUE((buffer() - before).abs().le(before.abs() * 0.5 + 1e-3).all().item<bool>());
}

TEST(FusedOptimizer, ArchivesDoNotTake8BitMoments) {
  at::Tensor p = torch::ones({4}).requires_grad_();
  p.mutable_grad() = torch::ones({4});
  optim::AdamW optimizer({p}, optim::AdamWOptions(0.1), {.moments = optim::Moments::k8Bit});
  optimizer.step();
  std::stringstream stream;
  EXPECT_NE(message_of([&] { torch::save(optimizer, stream); }).find("optimizer_state_dict"),
            std::string::npos);
  // A float archive is taken by an 8-bit optimizer, and the other way round it has no factors.
  optim::AdamW plain({p}, optim::AdamWOptions(0.1));
  plain.step();
  std::stringstream floats;
  torch::save(plain, floats);
  optim::AdamW second({p}, optim::AdamWOptions(0.1), {.moments = optim::Moments::k8Bit});
  torch::load(second, floats);
  second.step();
  EXPECT_NEAR(p[0].item<double>(), 1 - 0.1 * 3, 0.02);
}

TEST(FusedOptimizer, TakesAnExpandedGradientAndWritesTheProductToANewOne) {
  at::Tensor p = torch::zeros({4}).requires_grad_();
  p.mutable_grad() = torch::ones({}).expand({4});
  optim::SGD optimizer({p}, optim::SGDOptions(1), {.max_grad_norm = 1.0});
  optimizer.step();
  EXPECT_TRUE(torch::allclose(p, torch::full({4}, -0.5)));
  EXPECT_TRUE(torch::allclose(p.grad(), torch::full({4}, 0.5)));
}

TEST(FusedOptimizer, ClipsDoublePrecisionAsTheFunctionDoes) {
  torch::manual_seed(12);
  at::Tensor a = torch::randn({1000}, torch::kDouble).requires_grad_();
  at::Tensor b = a.detach().clone().requires_grad_();
  optim::SGD fused({a}, optim::SGDOptions(1), {.max_grad_norm = 0.3});
  optim::SGD classic({b}, optim::SGDOptions(1));
  for (const double size : {1.0, 1e100}) {
    a.mutable_grad() = torch::randn({1000}, torch::kDouble) * size;
    b.mutable_grad() = a.grad().clone();
    fused.step();
    clip_grad_norm_({b}, 0.3);
    classic.step();
    EXPECT_EQ(num_different(a, b), 0);
  }
}

TEST(FusedStep, RunsOnTwoThreads) {
  if (at::get_num_threads() < 2) GTEST_SKIP() << "LibTorch runs on one thread here";
  std::mutex mutex;
  std::set<std::thread::id> ids;
  multi_tensor::for_each_range({64 * 65536}, [&](size_t, kernels::Range) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const std::lock_guard lock(mutex);
    ids.insert(std::this_thread::get_id());
  });
  EXPECT_GE(ids.size(), 2U);
}

}  // namespace
}  // namespace torchamp
