// Ema against Python's AveragedModel (ema.json, written by make_ema_golden.py), against a float64
// loop, and what Python's cannot do: skipped steps, 16-bit weights, swapping in place.

#include <algorithm>
#include <cmath>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <ATen/Version.h>
#include <torch/torch.h>

#include "support/golden.h"
#include "torchamp/torchamp.h"

namespace torchamp::optim {
namespace {

using nlohmann::json;

struct Inner : torch::nn::Module {
  explicit Inner(at::ScalarType dtype) {
    weight = register_parameter("weight", torch::zeros({2, 3}, dtype));
    mean = register_buffer("mean", torch::zeros({4}, dtype));
  }
  torch::Tensor weight, mean;
};

// The model of make_ema_golden.py.
struct Model : torch::nn::Module {
  explicit Model(at::ScalarType dtype = at::kFloat) : inner(std::make_shared<Inner>(dtype)) {
    weight = register_parameter("weight", torch::zeros({5}, dtype));
    count = register_buffer("count", torch::zeros({}, at::kLong));
    register_module("inner", inner);
  }

  void fill(const json& numbers) {
    const torch::NoGradGuard no_grad;
    const auto set = [&](torch::Tensor& tensor, const char* name) {
      tensor.copy_(torch::tensor(numbers[name].get<std::vector<double>>(), at::kDouble)
                       .reshape(tensor.sizes()));
    };
    set(weight, "weight");
    set(inner->weight, "inner.weight");
    set(inner->mean, "inner.mean");
  }
  void fill_randomly() {
    const torch::NoGradGuard no_grad;
    for (torch::Tensor* tensor : {&weight, &inner->weight, &inner->mean}) {
      tensor->copy_(torch::randn(tensor->sizes(), at::kDouble));
    }
  }

  torch::Tensor weight, count;
  std::shared_ptr<Inner> inner;
};

torch::Tensor average_of(const Ema& ema, const std::string& name) {
  return ema.state_dict().at("module." + name).to_tensor();
}

bool same_bits(const torch::Tensor& a, const torch::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && torch::equal(a, b);
}

// Python's numbers; where the CPU has no fused multiply-add, lerp rounds once more.
void expect_golden(const base::StateDict& actual, const json& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (const base::StateDict::Entry& entry : actual.entries()) {
    const auto& name = std::get<std::string>(entry.key);
    const torch::Tensor tensor = entry.value.to_tensor();
    ASSERT_TRUE(expected.contains(name)) << name;
    const torch::Tensor golden =
        torch::tensor(expected[name].get<std::vector<double>>(), at::kDouble);
    const torch::Tensor own = tensor.reshape({-1}).to(at::kDouble);
    if (at::get_cpu_capability() == "DEFAULT") {
      const double unit = tensor.scalar_type() == at::kDouble ? 0x1p-53 : 0x1p-24;
      EXPECT_TRUE(torch::allclose(own, golden, 4 * unit, 4 * unit)) << name;
    } else {
      EXPECT_TRUE(torch::equal(own, golden)) << name << own << golden;
    }
  }
}

TEST(Ema, GivesPythonsNumbers) {
  const auto golden = testing::read_golden("ema.json");
  ASSERT_TRUE(golden) << "tests/golden/ema.json is missing";
  ASSERT_EQ((*golden)["cases"].size(), 12u);
  for (const json& one : (*golden)["cases"]) {
    SCOPED_TRACE(one["dtype"].get<std::string>() + ", decay " + one["decay"].dump());
    Model model(one["dtype"] == "float64" ? at::kDouble : at::kFloat);
    model.fill(one["begin"]);
    Ema ema(model, {.decay = one["decay"], .use_buffers = one["use_buffers"]});
    for (const json& step : one["steps"]) {
      model.fill(step["model"]);
      ema.update();
      expect_golden(ema.state_dict(), step["averaged"]);
    }
  }
}

// The average in double, and how far a float32 one may lie from it: an update rounds the
// difference, the weight and the sum (3 units of the largest value), and keeps `decay` of what was
// wrong before.
struct Loop {
  torch::Tensor value;
  double off = 0.0;
  void update(const torch::Tensor& weight, double decay, double unit) {
    const torch::Tensor x = weight.detach().to(at::kDouble);
    value = value.defined() ? decay * value + (1.0 - decay) * x : x;
    const double largest = std::max(x.abs().max().item<double>(), 4.0);
    off = decay * off + 3.0 * unit * largest;
  }
};

void expect_follows_loop(at::ScalarType dtype, bool warmup) {
  torch::manual_seed(1);
  Model model(dtype);
  Ema ema(model, {.decay = 0.99, .warmup = warmup});
  Loop loop;
  for (int n = 0; n < 300; ++n) {
    model.fill_randomly();
    ema.update();
    const double decay = warmup ? std::min(0.99, (1.0 + n) / (10.0 + n)) : 0.99;
    loop.update(model.weight, decay, 0x1p-24);
    const torch::Tensor average = average_of(ema, "weight");
    ASSERT_EQ(average.scalar_type(), at::kFloat);
    ASSERT_LE((average.to(at::kDouble) - loop.value).abs().max().item<double>(), loop.off) << n;
  }
  EXPECT_EQ(ema.n_averaged(), 300);
}

TEST(Ema, FollowsAFloat64LoopWhateverTheWeightsAre) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    expect_follows_loop(dtype, false);
    expect_follows_loop(dtype, true);
  }
}

TEST(Ema, MovesWhereABfloat16AverageWouldStandStill) {
  // 1.0078125 is the next bfloat16 after 1: each update moves a thousandth of that distance.
  Model model(at::kBFloat16);
  torch::NoGradGuard no_grad;
  model.weight.fill_(1.0);
  Ema ema(model, {.decay = 0.999});
  ema.update();
  model.weight.fill_(1.0078125);
  for (int i = 0; i < 1000; ++i) ema.update();
  // 1 + 2^-7 (1 - 0.999^1000); a thousand roundings of 2^-24 at most, most of them forgotten.
  const double expected = 1.0 + 0x1p-7 * (1.0 - std::pow(0.999, 1000));
  EXPECT_NEAR(average_of(ema, "weight")[0].item<double>(), expected, 1000 * 0x1p-24);
}

TEST(Ema, KeepsDoubleAndComplexAsTheyAre) {
  struct Wide : torch::nn::Module {
    Wide() {
      wave = register_parameter("wave", torch::ones({2}, at::kComplexFloat));
      index = register_parameter("index", torch::ones({2}, at::kLong), /*requires_grad=*/false);
    }
    torch::Tensor wave, index;
  } model;
  Ema ema(model, {.decay = 0.5});
  ema.update();
  {
    const torch::NoGradGuard no_grad;
    model.wave.fill_(c10::complex<double>(3.0, 4.0));
  }
  ema.update();
  EXPECT_TRUE(same_bits(average_of(ema, "wave"),
                        torch::full({2}, c10::complex<double>(2.0, 2.0), at::kComplexFloat)));
  EXPECT_TRUE(same_bits(average_of(ema, "index"), torch::ones({2}, at::kLong)));
}

TEST(Ema, FollowsAppliedStepsOnly) {
  Model model;
  Ema ema(model, {.decay = 0.5});
  const auto set = [&](double x) {
    const torch::NoGradGuard no_grad;
    model.weight.fill_(x);
  };
  const auto average = [&] { return average_of(ema, "weight")[0].item<double>(); };
  set(1.0);
  ema.update(true);
  set(3.0);
  ema.update(false);
  ema.update(amp::StepOutcome::make_pending(torch::tensor(1.0F)));
  EXPECT_EQ(average(), 1.0);
  EXPECT_EQ(ema.n_averaged(), 1);
  ema.update(amp::StepOutcome::make_applied({}));
  EXPECT_EQ(average(), 2.0);
  ema.update(amp::StepOutcome::make_pending(torch::tensor(0.0F)));
  EXPECT_EQ(average(), 2.5);
  const auto read = amp::StepOutcome::make_pending(torch::tensor(0.0F));
  EXPECT_TRUE(read.applied());
  ema.update(read);
  EXPECT_EQ(average(), 2.75);
  EXPECT_EQ(ema.n_averaged(), 4);
}

TEST(Ema, FollowsAScalerThatSkips) {
  auto weight = torch::ones({1}).requires_grad_();
  struct Holder : torch::nn::Module {
    explicit Holder(torch::Tensor weight) { register_parameter("weight", std::move(weight)); }
  } holder(weight);
  torch::optim::SGD sgd({weight}, torch::optim::SGDOptions(1.0));
  GradScaler scaler({.init_scale = 1024.0});
  Ema ema(holder, {.decay = 0.75});
  for (const float gradient : {INFINITY, 1.0F, NAN, 1.0F}) {
    scaler.scale(torch::zeros({}));
    weight.mutable_grad() = torch::full({1}, gradient * static_cast<float>(scaler.get_scale()));
    ema.update(scaler.step(sgd));
    scaler.update();
  }
  // Applied steps leave 0 and -1: the first is taken, then 3/4 of it and 1/4 of -1.
  EXPECT_EQ(average_of(ema, "weight").item<float>(), -0.25F);
  EXPECT_EQ(ema.n_averaged(), 2);
}

TEST(Ema, DecidesOnTheDeviceWithTheSameBits) {
  for (const bool warmup : {false, true}) {
    torch::manual_seed(2);
    Model model;
    Ema host(model, {.decay = 0.9, .use_buffers = true, .warmup = warmup});
    Ema device(model, {.decay = 0.9, .use_buffers = true, .warmup = warmup});
    for (const float found_inf : {1.0F, 0.0F, 0.0F, 2.0F, 0.0F, -1.0F, 0.0F, 0.0F}) {
      model.fill_randomly();
      host.update(found_inf == 0.0F);
      device.update_unless(torch::full({1}, found_inf));
      for (const char* name : {"weight", "inner.weight", "inner.mean"}) {
        EXPECT_TRUE(same_bits(average_of(host, name), average_of(device, name))) << name;
      }
    }
    EXPECT_EQ(host.n_averaged(), device.n_averaged());
    device.update_unless(torch::zeros({}));
    host.update();
    device.update();  // after updates that only the device counted
    host.update();
    EXPECT_TRUE(same_bits(average_of(host, "weight"), average_of(device, "weight")));
    EXPECT_EQ(device.n_averaged(), 7);
    EXPECT_THROW(device.update_unless(torch::zeros({2})), c10::ValueError);
    EXPECT_THROW(device.update_unless({}), c10::ValueError);
  }
}

TEST(Ema, TheFirstUpdateOnTheDeviceTakesTheWeights) {
  Model model;
  Ema ema(model, {.decay = 0.9});
  model.fill_randomly();
  ema.update_unless(torch::ones({}));
  EXPECT_TRUE(torch::equal(average_of(ema, "weight"), torch::zeros({5})));
  ema.update();  // the host does not know that there was none
  EXPECT_TRUE(same_bits(average_of(ema, "weight"), model.weight.detach()));
  EXPECT_EQ(ema.n_averaged(), 1);
}

TEST(Ema, SwapsInPlaceAndBack) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
    torch::manual_seed(3);
    Model model(dtype);
    model.fill_randomly();
    Ema ema(model, {.decay = 0.5, .use_buffers = true});
    ema.update();
    model.fill_randomly();
    ema.update();
    const torch::Tensor weight = model.weight.detach().clone(), mean = model.inner->mean.clone();
    const void* memory = model.weight.data_ptr();
    const auto version = model.weight._version();
    {
      const EmaWeights averaged(ema);
      EXPECT_TRUE(ema.is_swapped_in());
      EXPECT_TRUE(same_bits(model.weight.detach(), average_of(ema, "weight").to(dtype)));
      EXPECT_TRUE(same_bits(model.inner->mean, average_of(ema, "inner.mean").to(dtype)));
      EXPECT_FALSE(torch::equal(model.weight, weight));
      EXPECT_GT(model.weight._version(), version);
      EXPECT_TRUE(model.weight.requires_grad() && model.weight.is_leaf());
    }
    EXPECT_FALSE(ema.is_swapped_in());
    EXPECT_TRUE(same_bits(model.weight.detach(), weight));
    EXPECT_TRUE(same_bits(model.inner->mean, mean));
    EXPECT_EQ(model.weight.data_ptr(), memory);
  }
}

// A Linear with masters and an AdamW that holds them, after `steps` steps.
struct LowPrecisionRun {
  explicit LowPrecisionRun(at::ScalarType dtype) : linear(torch::nn::LinearOptions(8, 6)) {
    to_low_precision(*linear, dtype);
    optimizer = std::make_unique<AdamW>(linear->parameters(), AdamWOptions(1e-4));
  }
  void step(uint64_t seed) {
    torch::manual_seed(seed);
    linear->weight.mutable_grad() = torch::randn({6, 8}).to(linear->weight.scalar_type());
    optimizer->step();
  }
  torch::nn::Linear linear;
  std::unique_ptr<AdamW> optimizer;
};

TEST(Ema, AveragesAndRestoresTheExactValueOfAMaster) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    torch::manual_seed(5);
    LowPrecisionRun run(dtype);
    torch::manual_seed(5);
    LowPrecisionRun plain(dtype);
    const torch::Tensor& weight = run.linear->weight;
    Ema ema(*run.linear, {.decay = 0.75});
    torch::Tensor expected;
    for (uint64_t i = 0; i < 10; ++i) {
      run.step(i);
      plain.step(i);
      ema.update();
      const torch::Tensor exact = full_precision(weight).to(at::kDouble);
      expected = expected.defined() ? 0.75 * expected + 0.25 * exact : exact;
      // The difference, the weight and the sum are rounded, 1/4 of it forgotten each time: 12
      // units.
      const double bound = 12 * 0x1p-24 * exact.abs().max().item<double>();
      ASSERT_LE((average_of(ema, "weight") - expected).abs().max().item<double>(), bound);

      const torch::Tensor before = full_precision(weight).clone();
      {
        const EmaWeights averaged(ema);
        EXPECT_TRUE(same_bits(weight.detach(), average_of(ema, "weight").to(dtype)));
        EXPECT_TRUE(same_bits(full_precision(weight), average_of(ema, "weight")));
        EXPECT_TRUE(same_bits(full_state_dict(*run.linear).at("weight").to_tensor(),
                              average_of(ema, "weight")));
      }
      ASSERT_TRUE(same_bits(full_precision(weight), before)) << "the rest of the master is lost";
    }
    // Training goes on as if nothing had been swapped.
    EXPECT_TRUE(same_bits(full_precision(weight), full_precision(plain.linear->weight)));
    EXPECT_FALSE(torch::equal(full_precision(weight), weight.detach().to(at::kFloat)));
  }
}

TEST(Ema, AutocastsKeptCastSeesTheSwap) {  // as case 22 for a step
  auto linear = torch::nn::Linear(torch::nn::LinearOptions(1, 1).bias(false));
  const auto set = [&](double x) {
    const torch::NoGradGuard no_grad;
    linear->weight.fill_(x);
  };
  set(2.0);
  Ema ema(*linear, {.decay = 0.5});
  ema.update();
  set(6.0);
  ema.update();
  const Autocast autocast(at::kCPU, at::kBFloat16);
  const auto forward = [&] { return linear->forward(torch::ones({1, 1})).item<float>(); };
  EXPECT_EQ(forward(), 6.0F);
  {
    const EmaWeights averaged(ema);
    EXPECT_EQ(forward(), 4.0F);
  }
  EXPECT_EQ(forward(), 6.0F);
}

TEST(Ema, RefusesToAverageAverages) {
  Model model;
  Ema ema(model);
  EXPECT_THROW(ema.swap_out(), c10::Error);
  ema.swap_in();
  EXPECT_THROW(ema.swap_in(), c10::Error);
  EXPECT_THROW(ema.update(), c10::Error);
  EXPECT_THROW(ema.update(true), c10::Error);
  EXPECT_NO_THROW(ema.update(false));
  EXPECT_THROW(ema.update_unless(torch::zeros({})), c10::Error);
  EXPECT_THROW(ema.load_state_dict(ema.state_dict()), c10::Error);
  ema.swap_out();
  EXPECT_EQ(ema.n_averaged(), 0);
  EXPECT_NO_THROW(ema.update());
}

TEST(EmaWeights, PutsTheWeightsBackWhenAnExceptionPasses) {
  Model model;
  model.fill_randomly();
  Ema ema(model);
  model.fill_randomly();
  const torch::Tensor weight = model.weight.detach().clone();
  try {
    const EmaWeights averaged(ema);
    throw std::runtime_error("validation failed");
  } catch (const std::runtime_error&) {
  }
  EXPECT_TRUE(same_bits(model.weight.detach(), weight));
}

TEST(Ema, LeavesNoTraceInAutograd) {
  Model model;
  Ema ema(model, {.decay = 0.5});
  ema.update();
  ema.update();
  EXPECT_FALSE(average_of(ema, "weight").requires_grad());
  (model.weight * 2).sum().backward();  // the parameter is still a leaf
  EXPECT_TRUE(torch::equal(model.weight.grad(), torch::full({5}, 2.0)));
}

TEST(Ema, CountsATiedWeightOnceAndAveragesFrozenOnes) {
  struct Tied : torch::nn::Module {
    Tied() {
      first = register_parameter("first", torch::ones({1}));
      register_parameter("second", first);
      frozen = register_parameter("frozen", torch::ones({1}), /*requires_grad=*/false);
    }
    torch::Tensor first, frozen;
  } model;
  Ema ema(model, {.decay = 0.5});
  ema.update();
  {
    const torch::NoGradGuard no_grad;
    model.first.fill_(3.0);
    model.frozen.fill_(5.0);
  }
  ema.update();
  EXPECT_EQ(average_of(ema, "first").item<float>(), 2.0F);
  EXPECT_TRUE(average_of(ema, "second").is_same(average_of(ema, "first")));
  EXPECT_EQ(average_of(ema, "frozen").item<float>(), 3.0F);
  EXPECT_EQ(ema.state_dict().size(), 4u);
}

TEST(Ema, FollowsAModuleThatIsConverted) {
  Model model(at::kBFloat16);
  Ema ema(model, {.decay = 0.5});
  ema.update();
  model.to(at::kDouble);
  model.fill_randomly();
  ema.update();
  EXPECT_TRUE(same_bits(average_of(ema, "weight"), model.weight.detach() * 0.5));
}

TEST(Ema, ResumesFromItsState) {
  torch::manual_seed(4);
  Model model, other;
  Ema ema(model, {.decay = 0.5});
  for (int i = 0; i < 3; ++i) {
    model.fill_randomly();
    ema.update();
  }
  Ema resumed(other, {.decay = 0.5});
  resumed.load_state_dict(ema.state_dict());
  EXPECT_EQ(resumed.n_averaged(), 3);
  EXPECT_EQ(resumed.state_dict().at("n_averaged").to_tensor().scalar_type(), at::kLong);
  other.fill_randomly();
  {
    const torch::NoGradGuard no_grad;
    for (size_t i = 0; i < 2; ++i) model.parameters()[i].copy_(other.parameters()[i]);
  }
  ema.update();
  resumed.update();
  EXPECT_TRUE(same_bits(average_of(ema, "weight"), average_of(resumed, "weight")));
  EXPECT_TRUE(same_bits(average_of(ema, "inner.weight"), average_of(resumed, "inner.weight")));
  EXPECT_FALSE(average_of(ema, "weight").is_alias_of(average_of(resumed, "weight")));
}

TEST(Ema, TakesOverPythonsState) {
  const auto golden = testing::read_golden("ema.json");
  ASSERT_TRUE(golden);
  const json& one = (*golden)["cases"][1];
  ASSERT_TRUE(one["use_buffers"].get<bool>());
  Model model;
  base::StateDict python;
  for (const auto& [name, numbers] : one["steps"][1]["averaged"].items()) {
    torch::Tensor tensor = torch::tensor(numbers.get<std::vector<double>>(), at::kFloat);
    if (name == "n_averaged" || name == "module.count") tensor = tensor.to(at::kLong).reshape({});
    if (name == "module.inner.weight") tensor = tensor.reshape({2, 3});
    python.set(name, tensor);
  }
  Ema ema(model, {.decay = one["decay"], .use_buffers = true});
  ema.load_state_dict(python);
  EXPECT_EQ(ema.n_averaged(), 2);
  model.fill(one["steps"][2]["model"]);
  ema.update();
  expect_golden(ema.state_dict(), one["steps"][2]["averaged"]);
}

TEST(Ema, RefusesAStateThatDoesNotFitAndChangesNothing) {
  Model model;
  Ema ema(model);
  base::StateDict state = Ema(model).state_dict();
  state.erase(std::string("module.weight"));
  state.set("module.inner.weight", torch::ones({3, 2}));
  state.set("module.head", torch::ones({1}));
  try {
    ema.load_state_dict(state);
    FAIL() << "no error";
  } catch (const base::CheckpointError& error) {
    for (const char* part : {"1 missing ('module.weight')", "1 unexpected ('module.head')",
                             "'module.inner.weight' is Float[3, 2], not Float[2, 3]"}) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  }
  state = Ema(model).state_dict();
  state.set("module.weight", torch::ones({5}));
  state.set("n_averaged", -1);
  EXPECT_THROW(ema.load_state_dict(state), base::CheckpointError);
  state.erase(std::string("n_averaged"));
  EXPECT_THROW(ema.load_state_dict(state), base::CheckpointError);
  EXPECT_TRUE(torch::equal(average_of(ema, "weight"), torch::zeros({5})));
  EXPECT_EQ(ema.n_averaged(), 0);
}

TEST(Ema, RefusesADecayOutsideOfZeroToOne) {
  Model model;
  for (const double decay : {-0.1, 1.1, std::nan("")}) {
    EXPECT_THROW(Ema(model, {.decay = decay}), c10::ValueError) << decay;
  }
}

TEST(Ema, AModuleWithoutParametersHasNothingToAverage) {
  torch::nn::Module empty;
  Ema ema(empty);
  ema.update();
  ema.update();
  ema.update_unless(torch::zeros({}));
  const EmaWeights averaged(ema);
  EXPECT_EQ(ema.n_averaged(), 3);
}

}  // namespace
}  // namespace torchamp::optim
