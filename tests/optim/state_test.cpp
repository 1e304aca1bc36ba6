#include "torchamp/optim/state.h"

#include <filesystem>
#include <functional>
#include <initializer_list>
#include <limits>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "checkpoint/checkpoint_support.h"
#include "torchamp/checkpoint/checkpoint.h"
#include "torchamp/optim/adamw.h"
#include "torchamp/optim/lamb.h"
#include "torchamp/optim/sgd.h"
#include "torchamp/train/meter.h"
#include "torchamp/train/module_state.h"

namespace torchamp::optim {
namespace {

using base::CheckpointError;
using base::List;
using base::StateDict;
using base::Tuple;
using base::Value;

// The optimizers of tests/golden/checkpoint/make_checkpoints.py.
torch::optim::AdamW adamw(torch::nn::Sequential& net) {
  return torch::optim::AdamW(net->parameters(), torch::optim::AdamWOptions(0.125));
}

torch::optim::Adam adam(torch::nn::Sequential& net) {
  auto first = std::make_unique<torch::optim::AdamOptions>(0.125);
  first->weight_decay(0.25).amsgrad(true);
  auto second = std::make_unique<torch::optim::AdamOptions>(0.0625);
  second->amsgrad(true);
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(net[0]->parameters(), std::move(first));
  groups.emplace_back(net[1]->parameters(), std::move(second));
  return torch::optim::Adam(groups, torch::optim::AdamOptions(0.125).amsgrad(true));
}

torch::optim::SGD sgd(torch::nn::Sequential& net) {
  return torch::optim::SGD(net->parameters(), torch::optim::SGDOptions(0.125).momentum(0.5));
}

StateDict golden_file(const std::string& name) {
  return checkpoint::load(golden("checkpoint/2.15.0/" + name + ".pt"));
}

std::string error_of(torch::optim::Optimizer& optimizer, const StateDict& dict) {
  try {
    load_optimizer_state_dict(optimizer, dict);
    return "";
  } catch (const CheckpointError& error) {
    return error.what();
  }
}

// Loads Python's checkpoint, goes on for two steps, and compares with where Python got to.
template <typename Make>
void expect_goes_on_as_python(const std::string& name, Make make, double tolerance) {
  const StateDict saved = golden_file(name);
  torch::nn::Sequential net = model();
  auto optimizer = make(net);
  train::load_module_state_dict(*net, saved.at("model").to_dict());
  load_optimizer_state_dict(optimizer, saved.at("optimizer").to_dict());
  for (int step = 3; step < 5; ++step) {
    set_gradients(net, step);
    optimizer.step();
  }
  const StateDict expected = golden_file(name + "_after");
  const StateDict own = train::module_state_dict(*net);
  for (const auto& [key, value] : expected.entries()) {
    const at::Tensor& python = value.to_tensor();
    const at::Tensor& cpp = own.at(key).to_tensor();
    if (tolerance == 0) {
      EXPECT_TRUE(same(cpp, python)) << base::to_string(key);
    } else {
      EXPECT_TRUE(at::allclose(cpp, python, tolerance, tolerance)) << base::to_string(key);
    }
  }
}

TEST(OptimizerState, SgdGoesOnFromPythonBitForBit) { expect_goes_on_as_python("sgd", sgd, 0); }

// LibTorch's C++ Adam orders its arithmetic differently from Python's: two steps of a few
// roundings each, on weights below 4 and updates below 1/8. 8 ulps = 8 * 2^-24 = 5e-7.
// The fused ones take the very steps of Python's loops.
optim::AdamW fused_adamw(torch::nn::Sequential& net) {
  return optim::AdamW(net->parameters(), optim::AdamWOptions(0.125));
}

optim::SGD fused_sgd(torch::nn::Sequential& net) {
  return optim::SGD(net->parameters(), optim::SGDOptions(0.125).momentum(0.5));
}

TEST(OptimizerState, FusedAdamWGoesOnFromPythonBitForBit) {
  expect_goes_on_as_python("adamw", fused_adamw, 0);
}
TEST(OptimizerState, FusedSgdGoesOnFromPythonBitForBit) {
  expect_goes_on_as_python("sgd", fused_sgd, 0);
}
TEST(OptimizerState, AdamWGoesOnFromPython) { expect_goes_on_as_python("adamw", adamw, 5e-7); }
TEST(OptimizerState, AdamWithGroupsAndAmsgradGoesOnFromPython) {
  expect_goes_on_as_python("adam", adam, 5e-7);
}

// After load, what is written is what Python wrote, but for the type of some numbers.
template <typename Make>
void expect_same_layout_as_python(const std::string& name, Make make) {
  const StateDict python = golden_file(name).at("optimizer").to_dict();
  torch::nn::Sequential net = model();
  auto optimizer = make(net);
  load_optimizer_state_dict(optimizer, python);
  const StateDict own = optimizer_state_dict(optimizer);
  EXPECT_TRUE(same(own.at("state").to_dict(), python.at("state").to_dict()));
  const std::vector<Value>& own_groups = own.at("param_groups").to_items();
  const std::vector<Value>& python_groups = python.at("param_groups").to_items();
  ASSERT_EQ(own_groups.size(), python_groups.size());
  for (size_t i = 0; i < own_groups.size(); ++i) {
    const StateDict& a = own_groups[i].to_dict();
    const StateDict& b = python_groups[i].to_dict();
    ASSERT_EQ(a.size(), b.size());
    for (const auto& [key, value] : a.entries()) {
      const Value& other = b.at(key);
      if (key == StateDict::Key("foreach")) {
        EXPECT_TRUE(value.is_none());  // the script sets foreach=False
      } else if (value.template is<double>()) {
        EXPECT_EQ(value.to_double(), other.to_double()) << base::to_string(key);
      } else {
        EXPECT_TRUE(same(value, other)) << base::to_string(key);
      }
    }
  }
}

TEST(OptimizerState, WritesAdamWAsPythonDoes) { expect_same_layout_as_python("adamw", adamw); }
TEST(OptimizerState, WritesAdamAsPythonDoes) { expect_same_layout_as_python("adam", adam); }
TEST(OptimizerState, WritesSgdAsPythonDoes) { expect_same_layout_as_python("sgd", sgd); }

// Interrupted after 3 of 6 steps and resumed into new objects, against 6 steps without a stop.
template <typename Make>
void expect_resumes_bit_for_bit(Make make) {
  torch::manual_seed(1);
  torch::nn::Sequential straight = model();
  torch::nn::Sequential before = model();
  train::load_module_state_dict(*before, train::module_state_dict(*straight));
  auto straight_optimizer = make(straight);
  auto before_optimizer = make(before);
  for (int step = 0; step < 6; ++step) {
    set_gradients(straight, step);
    straight_optimizer.step();
    if (step >= 3) continue;
    set_gradients(before, step);
    before_optimizer.step();
  }
  const TemporaryFolder folder;
  StateDict dict;
  dict.set("model", train::module_state_dict(*before));
  dict.set("optimizer", optimizer_state_dict(before_optimizer));
  checkpoint::save(folder / "a.pt", dict);
  const StateDict read = checkpoint::load(folder / "a.pt");
  torch::nn::Sequential after = model();
  auto after_optimizer = make(after);
  train::load_module_state_dict(*after, read.at("model").to_dict());
  load_optimizer_state_dict(after_optimizer, read.at("optimizer").to_dict());
  for (int step = 3; step < 6; ++step) {
    set_gradients(after, step);
    after_optimizer.step();
  }
  EXPECT_TRUE(same(train::module_state_dict(*after), train::module_state_dict(*straight)));
  EXPECT_TRUE(
      same(optimizer_state_dict(after_optimizer), optimizer_state_dict(straight_optimizer)));
}

TEST(OptimizerState, ResumesAdamWBitForBit) { expect_resumes_bit_for_bit(adamw); }
TEST(OptimizerState, ResumesFusedAdamWBitForBit) { expect_resumes_bit_for_bit(fused_adamw); }
TEST(OptimizerState, ResumesLambBitForBit) {
  expect_resumes_bit_for_bit([](torch::nn::Sequential& net) {
    return optim::LAMB(net->parameters(), optim::LAMBOptions(0.125));
  });
}
TEST(OptimizerState, ResumesBFloat16MomentsBitForBit) {
  expect_resumes_bit_for_bit([](torch::nn::Sequential& net) {
    return optim::AdamW(net->parameters(), optim::AdamWOptions(0.125),
                        {.moments = optim::Moments::kBFloat16, .seed = 7});
  });
}
// A number that has a code keeps it, so writing the codes as floats loses nothing.
TEST(OptimizerState, ResumesEightBitMomentsBitForBit) {
  expect_resumes_bit_for_bit([](torch::nn::Sequential& net) {
    return optim::AdamW(net->parameters(), optim::AdamWOptions(0.125),
                        {.moments = optim::Moments::k8Bit, .seed = 7});
  });
}
TEST(OptimizerState, ResumesSgdThatRoundsByChanceBitForBit) {
  expect_resumes_bit_for_bit([](torch::nn::Sequential& net) {
    return optim::SGD(net->parameters(), optim::SGDOptions(0.125).momentum(0.5),
                      {.moments = optim::Moments::k8Bit, .seed = 7});
  });
}
TEST(OptimizerState, EightBitMomentsAreSavedAsFloatsOfTheirValue) {
  at::Tensor weight = torch::randn({600}).requires_grad_();
  optim::AdamW optimizer({weight}, optim::AdamWOptions(0.125), {.moments = optim::Moments::k8Bit});
  weight.mutable_grad() = torch::randn({600});
  optimizer.step();
  const StateDict dict = optimizer_state_dict(optimizer);
  const StateDict& saved = dict.at("state").to_dict("state").at(int64_t{0}).to_dict("0");
  const at::Tensor average = saved.at("exp_avg").to_tensor("exp_avg");
  ASSERT_EQ(average.scalar_type(), at::kFloat);
  // m = 0.1 g, to one of the two codes around it: 3 bits of mantissa, or a step of the smallest.
  const at::Tensor right = weight.grad() * 0.1;
  const at::Tensor error = (average - right).abs();
  const double largest = right.abs().max().item<double>();
  EXPECT_TRUE(error.le(right.abs() * 0.125 + largest * 0x1p-16).all().item<bool>());
  optim::AdamW second({weight}, optim::AdamWOptions(0.125), {.moments = optim::Moments::k8Bit});
  load_optimizer_state_dict(second, dict);
  const StateDict again = optimizer_state_dict(second);
  const at::Tensor reloaded = again.at("state")
                                  .to_dict("state")
                                  .at(int64_t{0})
                                  .to_dict("0")
                                  .at("exp_avg_sq")
                                  .to_tensor("exp_avg_sq");
  const at::Tensor squares = saved.at("exp_avg_sq").to_tensor("exp_avg_sq");
  EXPECT_TRUE(torch::equal(reloaded, squares));
}

// Case 44: moments of a float16 parameter stay float32.
TEST(OptimizerState, Case44MomentsAreNotCastToTheParameter) {
  at::Tensor weight = torch::ones({2}, at::kHalf).requires_grad_();
  optim::AdamW optimizer({weight}, optim::AdamWOptions(0.125));
  StateDict state;
  state.set("step", at::scalar_tensor(3.0, at::kFloat));
  state.set("exp_avg", torch::full({2}, 1e-9));
  state.set("exp_avg_sq", torch::full({2}, 1e-9));
  StateDict dict = optimizer_state_dict(optimizer);
  StateDict states;
  states.set(int64_t{0}, std::move(state));
  dict.set("state", std::move(states));
  load_optimizer_state_dict(optimizer, dict);
  const auto& loaded = static_cast<const torch::optim::AdamWParamState&>(
      *optimizer.state().at(weight.unsafeGetTensorImpl()));
  EXPECT_EQ(loaded.step(), 3);
  EXPECT_EQ(loaded.exp_avg().scalar_type(), at::kFloat);
  EXPECT_EQ(loaded.exp_avg()[0].item<float>(), 1e-9F);
}

TEST(OptimizerState, ResumesAdamBitForBit) { expect_resumes_bit_for_bit(adam); }
TEST(OptimizerState, ResumesSgdBitForBit) { expect_resumes_bit_for_bit(sgd); }

TEST(OptimizerState, TakesOverHyperparameters) {
  torch::nn::Sequential net = model();
  torch::optim::AdamW from = adamw(net);
  static_cast<torch::optim::AdamWOptions&>(from.param_groups()[0].options())
      .lr(0.5)
      .betas({0.5, 0.75})
      .eps(0.25)
      .weight_decay(0.125)
      .amsgrad(true);
  torch::optim::AdamW to = adamw(net);
  load_optimizer_state_dict(to, optimizer_state_dict(from));
  const auto& options =
      static_cast<const torch::optim::AdamWOptions&>(to.param_groups()[0].options());
  EXPECT_EQ(options.lr(), 0.5);
  EXPECT_EQ(options.betas(), std::make_tuple(0.5, 0.75));
  EXPECT_EQ(options.eps(), 0.25);
  EXPECT_EQ(options.weight_decay(), 0.125);
  EXPECT_TRUE(options.amsgrad());
}

TEST(Case86, AFileLoadedAHundredTimesRestoresRateAndStepAndTakesNoMemory) {
  torch::nn::Sequential net = model();
  torch::optim::Adam from(net->parameters(), torch::optim::AdamOptions(0.1));
  for (int step = 0; step < 3; ++step) {
    set_gradients(net, step);
    from.step();
  }
  const StateDict saved = optimizer_state_dict(from);
  const TemporaryFolder folder;
  checkpoint::save(folder / "adam.pt", saved);
  torch::optim::Adam to(net->parameters(), torch::optim::AdamOptions(1.1));
  const train::TensorMemoryMeter meter;
  load_optimizer_state_dict(to, checkpoint::load(folder / "adam.pt"));
  const int64_t once = meter.current_bytes();
  for (int i = 0; i < 99; ++i) {
    load_optimizer_state_dict(to, checkpoint::load(folder / "adam.pt"));
  }
  EXPECT_GT(once, 0);
  EXPECT_EQ(meter.current_bytes(), once);
  EXPECT_TRUE(same(optimizer_state_dict(to), saved));  // the rate 0.1 and the three steps, too
}

TEST(OptimizerState, LoadingAStateWithoutStepsForgetsTheSteps) {
  torch::nn::Sequential net = model();
  torch::optim::SGD optimizer = sgd(net);
  const StateDict fresh = optimizer_state_dict(optimizer);
  set_gradients(net, 0);
  optimizer.step();
  EXPECT_EQ(optimizer.state().size(), 4U);
  load_optimizer_state_dict(optimizer, fresh);
  EXPECT_EQ(optimizer.state().size(), 0U);
}

TEST(OptimizerState, SgdReadsAMomentumThatIsNoneAsNotYetThere) {
  torch::nn::Sequential net = model();
  torch::optim::SGD optimizer = sgd(net);
  StateDict dict = optimizer_state_dict(optimizer);
  StateDict none;
  none.set("momentum_buffer", Value());
  StateDict state;
  state.set(int64_t{0}, none);
  dict.set("state", state);
  load_optimizer_state_dict(optimizer, dict);
  EXPECT_EQ(optimizer.state().size(), 0U);
}

TEST(OptimizerState, CopiesTensorsInTheDtypeOfTheParameter) {
  at::Tensor parameter = torch::ones({2}, at::kDouble).requires_grad_();
  torch::optim::SGD optimizer({parameter}, torch::optim::SGDOptions(1).momentum(0.5));
  StateDict dict = optimizer_state_dict(optimizer);
  const at::Tensor buffer = torch::full({2}, 3.0F);
  StateDict entry;
  entry.set("momentum_buffer", buffer);
  StateDict state;
  state.set(int64_t{0}, entry);
  dict.set("state", state);
  load_optimizer_state_dict(optimizer, dict);
  buffer.fill_(7);
  const StateDict own = optimizer_state_dict(optimizer).at("state").to_dict();
  EXPECT_TRUE(same(own.at(int64_t{0}).to_dict().at("momentum_buffer").to_tensor(),
                   torch::full({2}, 3.0, at::kDouble)));
}

TEST(OptimizerState, SaysWhatDiffersAndChangesNothing) {
  torch::nn::Sequential net = model();
  torch::optim::AdamW optimizer = adamw(net);
  set_gradients(net, 0);
  optimizer.step();
  StateDict before = optimizer_state_dict(optimizer);
  const auto expect = [&](const StateDict& dict, const std::string& text) {
    const std::string error = error_of(optimizer, dict);
    EXPECT_NE(error.find(text), std::string::npos) << error;
    EXPECT_TRUE(same(optimizer_state_dict(optimizer), before));
  };
  const auto python = [](const char* name) { return golden_file(name).at("optimizer").to_dict(); };
  expect(python("sgd"), "param_groups[0] is of SGD, the optimizer is AdamW");
  expect(python("adam"), "the state has 2 parameter groups, the optimizer 1");

  StateDict other = python("adamw");
  StateDict group = other.at("param_groups").to_items()[0].to_dict();
  group.set("maximize", true);
  group.erase("eps");
  other.set("param_groups", List{{group}});
  expect(other, "(2 differences): param_groups[0]['maximize'] is True");
  expect(other, "param_groups[0]['eps'] is missing");

  other = python("adamw");
  group = other.at("param_groups").to_items()[0].to_dict();
  group.set("params", List{{0, 1}});
  other.set("param_groups", List{{group}});
  expect(other, "param_groups[0] has 2 parameters, the optimizer 4");

  other = python("adamw");
  StateDict state = other.at("state").to_dict();
  StateDict first = state.at(int64_t{0}).to_dict();
  first.set("exp_avg", torch::zeros({2, 2}));
  first.set("step", 1.5);
  first.erase("exp_avg_sq");
  state.set(int64_t{0}, first);
  state.set(int64_t{9}, first);
  other.set("state", state);
  expect(other, "(4 differences): state[0]['step'] is 1.5");
  expect(other, "state[0]['exp_avg'] has shape [2, 2], the parameter [2, 3]");
  expect(other, "state[0]['exp_avg_sq'] is missing");
  expect(other, "state[9] belongs to no parameter");

  other = python("adamw");
  group = other.at("param_groups").to_items()[0].to_dict();
  group.set("lr", "fast");
  other.set("param_groups", List{{group}});
  expect(other, "param_groups[0]['lr'] is a str; float");
  expect(StateDict(), "'param_groups' is missing");
}

// A golden optimizer state with each group changed.
StateDict with_groups(const std::string& name, const std::function<void(StateDict&)>& change) {
  StateDict dict = golden_file(name).at("optimizer").to_dict();
  List groups;
  for (const Value& value : dict.at("param_groups").to_items()) {
    StateDict group = value.to_dict();
    change(group);
    groups.items.emplace_back(std::move(group));
  }
  dict.set("param_groups", std::move(groups));
  return dict;
}

// `saved` with another value in its first group.
StateDict with_option(const StateDict& saved, const char* key, Value value) {
  List groups{saved.at("param_groups").to_items()};
  StateDict group = groups.items[0].to_dict();
  group.set(key, std::move(value));
  groups.items[0] = group;
  StateDict changed = saved;
  changed.set("param_groups", groups);
  return changed;
}

// The ranges are those of torch/optim's constructors; NaN and infinity beside them.
TEST(OptimizerState, RefusesHyperparametersThatNoOptimizerCanBeMadeWith) {
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  constexpr double kInf = std::numeric_limits<double>::infinity();
  torch::nn::Sequential net = model();
  torch::optim::AdamW with_moments = adamw(net);
  torch::optim::SGD with_momentum = sgd(net);
  const auto refuses = [&](torch::optim::Optimizer& optimizer, const char* key, const Value& value,
                           const std::string& text) {
    const StateDict before = optimizer_state_dict(optimizer);
    const std::string error = error_of(optimizer, with_option(before, key, value));
    EXPECT_NE(error.find("(1 difference): param_groups[0]['" + std::string(key) + "']" + text),
              std::string::npos)
        << key << ": " << error;
    EXPECT_TRUE(same(optimizer_state_dict(optimizer), before));
  };
  for (torch::optim::Optimizer* optimizer :
       std::initializer_list<torch::optim::Optimizer*>{&with_moments, &with_momentum}) {
    refuses(*optimizer, "lr", -0.5, " is -0.5, a finite number from 0 is expected");
    refuses(*optimizer, "lr", kNaN, " is nan, a finite number");
    refuses(*optimizer, "lr", kInf, " is inf, a finite number");
    refuses(*optimizer, "weight_decay", -1, " is -1, a finite number from 0");
    // What LinearLR leaves at its end.
    EXPECT_EQ(
        error_of(*optimizer, with_option(optimizer_state_dict(*optimizer), "lr", -0.5 * 0x1p-52)),
        "");
  }
  refuses(with_moments, "eps", -1e-8, " is -1e-08, a finite number from 0");
  refuses(with_moments, "eps", kNaN, " is nan");
  refuses(with_moments, "betas", Tuple{{0.9, 1.0}}, "[1] is 1, 0 to below 1 is expected");
  refuses(with_moments, "betas", Tuple{{-0.1, 0.999}}, "[0] is -0.1, 0 to below 1");
  refuses(with_moments, "betas", Tuple{{kNaN, 0.999}}, "[0] is nan, 0 to below 1");
  refuses(with_momentum, "momentum", -0.5, " is -0.5, a finite number from 0");
  refuses(with_momentum, "dampening", kInf, " is inf, a finite number is expected");
  EXPECT_EQ(
      error_of(with_momentum, with_option(optimizer_state_dict(with_momentum), "dampening", -0.5)),
      "");
}

// PyTorch 1.13 to 2.6 wrote fewer keys, later versions may write more; numbers come in every type
// that Python takes for one.
TEST(OptimizerState, TakesTheGroupsOfOlderAndLaterVersions) {
  torch::nn::Sequential net = model();
  torch::optim::AdamW optimizer = adamw(net);
  load_optimizer_state_dict(
      optimizer, with_groups("adamw", [](StateDict& group) {
        for (const char* key : {"maximize", "foreach", "capturable", "differentiable", "fused",
                                "decoupled_weight_decay"}) {
          group.erase(std::string(key));
        }
        group.set("lr", torch::tensor(0.25F));
        group.set("weight_decay", 0);
        group.set("betas", List{{0.5, torch::tensor(0.75, at::kDouble)}});
        group.set("some_later_key", Tuple{{1, Value(), "text"}});
        group.set("initial_lr", 0.5);
      }));
  const auto& options =
      static_cast<const torch::optim::AdamWOptions&>(optimizer.param_groups()[0].options());
  EXPECT_EQ(options.lr(), 0.25);
  EXPECT_EQ(options.weight_decay(), 0.0);
  EXPECT_EQ(options.betas(), std::make_tuple(0.5, 0.75));
  EXPECT_EQ(optimizer.state().size(), 4U);

  torch::optim::SGD plain = sgd(net);
  load_optimizer_state_dict(
      plain, with_groups("sgd", [](StateDict& group) {
        for (const char* key : {"maximize", "foreach", "differentiable", "fused"}) {
          group.erase(std::string(key));
        }
        group.set("dampening", 0);
        group.set("lr", 1);
      }));
  EXPECT_EQ(plain.param_groups()[0].options().get_lr(), 1.0);
}

// Loads the file of one version and compares every tensor with it.
template <typename Make>
void expect_reads(const std::filesystem::path& file, Make make) {
  const StateDict python = checkpoint::load(file).at("optimizer").to_dict();
  torch::nn::Sequential net = model();
  auto optimizer = make(net);
  load_optimizer_state_dict(optimizer, python);
  const StateDict own = optimizer_state_dict(optimizer);
  const StateDict& states = python.at("state").to_dict();
  ASSERT_EQ(own.at("state").to_dict().size(), states.size()) << file;
  for (const auto& [number, state] : states.entries()) {
    const StateDict& read = own.at("state").to_dict().at(number).to_dict();
    for (const auto& [key, value] : state.to_dict().entries()) {
      if (key == StateDict::Key("step")) {
        EXPECT_EQ(read.at(key).to_double(), value.to_double()) << file;
      } else {
        EXPECT_TRUE(same(read.at(key).to_tensor(), value.to_tensor())) << file;
      }
    }
  }
}

TEST(OptimizerState, ReadsTheFilesOfEveryVersion) {
  int num_versions = 0;
  for (const auto& entry : std::filesystem::directory_iterator(golden("checkpoint"))) {
    const std::filesystem::path folder = entry.path();
    if (!std::filesystem::exists(folder / "adamw.pt")) continue;
    ++num_versions;
    expect_reads(folder / "adamw.pt", adamw);
    expect_reads(folder / "adamw.pt", fused_adamw);
    expect_reads(folder / "adam.pt", adam);
    expect_reads(folder / "sgd.pt", sgd);
    expect_reads(folder / "sgd.pt", fused_sgd);
  }
  EXPECT_GE(num_versions, 8);  // 1.13.1 to 2.15.0
}

TEST(OptimizerState, ReadsAStepOfEveryTypeAndNumbersThatDoNotBeginAtZero) {
  const StateDict saved = golden_file("adamw").at("optimizer").to_dict();
  for (const Value& step :
       {Value(3), Value(3.0), Value(torch::tensor(3.0F)), Value(torch::tensor(int64_t{3})),
        Value(torch::tensor(3.0, at::kDouble)), Value(torch::full({1}, 3.0F))}) {
    torch::nn::Sequential net = model();
    torch::optim::AdamW optimizer = adamw(net);
    StateDict states;
    for (const auto& [key, value] : saved.at("state").to_dict().entries()) {
      StateDict state = value.to_dict();
      state.set("step", step);
      states.set(std::get<int64_t>(key) + 140000000000, std::move(state));
    }
    StateDict dict = with_groups("adamw", [](StateDict& group) {
      List numbers;
      for (const Value& number : group.at("params").to_items()) {
        numbers.items.emplace_back(number.to_int() + 140000000000);
      }
      group.set("params", std::move(numbers));
    });
    dict.set("state", std::move(states));
    load_optimizer_state_dict(optimizer, dict);
    EXPECT_TRUE(
        same(optimizer_state_dict(optimizer).at("state").to_dict(), saved.at("state").to_dict()))
        << step.type_name();
  }
}

// The groups of Python's other optimizers have keys of their own.
TEST(OptimizerState, NamesTheOptimizerThatAFileIsOf) {
  torch::nn::Sequential net = model();
  torch::optim::AdamW optimizer = adamw(net);
  using Keys = std::vector<const char*>;
  for (const auto& [name, more, less] : std::vector<std::tuple<std::string, Keys, Keys>>{
           {"RMSprop", {"alpha", "momentum", "centered"}, {"betas", "amsgrad"}},
           {"ASGD", {"alpha", "lambd", "t0"}, {"betas", "amsgrad", "eps"}},
           {"Adadelta", {"rho"}, {"betas", "amsgrad"}},
           {"Adagrad", {"lr_decay", "initial_accumulator_value"}, {"betas", "amsgrad"}},
           {"Rprop", {"etas", "step_sizes"}, {"betas", "amsgrad", "eps"}},
           {"NAdam", {"momentum_decay"}, {"amsgrad"}},
           {"RAdam", {}, {"amsgrad"}},
           {"Adamax", {}, {"amsgrad", "decoupled_weight_decay"}}}) {
    const StateDict dict = with_groups("adamw", [&, &more = more, &less = less](StateDict& group) {
      for (const char* key : more) group.set(key, 0.5);
      for (const char* key : less) group.erase(std::string(key));
    });
    EXPECT_NE(error_of(optimizer, dict)
                  .find("param_groups[0] is of " + name + ", the optimizer is AdamW"),
              std::string::npos)
        << error_of(optimizer, dict);
  }
  const StateDict coupled =
      with_groups("adamw", [](StateDict& group) { group.set("decoupled_weight_decay", false); });
  EXPECT_NE(error_of(optimizer, coupled).find("is of Adam, the optimizer is AdamW"),
            std::string::npos);
}

TEST(OptimizerState, RefusesAnOptimizerItDoesNotKnow) {
  torch::nn::Sequential net = model();
  torch::optim::RMSprop optimizer(net->parameters());
  EXPECT_THROW(optimizer_state_dict(optimizer), CheckpointError);
}

}  // namespace
}  // namespace torchamp::optim
