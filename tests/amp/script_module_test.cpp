// script_for_autocast on modules that Python wrote: the numbers of Python's eager modules, in every
// order of regions, where LibTorch's script compiler serves one region's casts to another.

#include "torchamp/amp/script_module.h"

#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <torch/csrc/jit/passes/autocast.h>
#include <torch/script.h>

#include "amp/support.h"
#include "torchamp/amp/autocast.h"
#include "torchamp/optim/clip_grad_norm.h"

namespace torchamp::test {
namespace {

using amp::Autocast;
using amp::script_for_autocast;
using torch::jit::Module;

const std::string kFolder = TORCHAMP_GOLDEN_DIR "/script/";

Module load(const std::string& name) { return torch::jit::load(kFolder + name + ".pt"); }

nlohmann::json golden() {
  std::ifstream file(kFolder + "expected.json");
  EXPECT_TRUE(file) << "tests/golden/script/expected.json is missing";
  return nlohmann::json::parse(file)["modules"];
}

std::vector<at::Tensor> parameters_of(const Module& module) {
  std::vector<at::Tensor> parameters;
  for (const auto& parameter : module.parameters()) {
    parameters.push_back(parameter);
  }
  return parameters;
}

at::Tensor tensor_of(const nlohmann::json& values) {
  return torch::tensor(values.get<std::vector<double>>(), torch::kDouble);
}

const char* name_of(at::ScalarType type) {
  return type == at::kFloat ? "float32" : type == at::kHalf ? "float16" : "bfloat16";
}

at::Tensor forward(Module& module, const at::Tensor& x, at::ScalarType type) {
  const Autocast region(at::kCPU, type == at::kFloat ? at::kBFloat16 : type,
                        {.enabled = type != at::kFloat});
  return module.forward({x}).toTensor();
}

// Another processor rounds sums in another order: the error of a few roundings of the type, seen
// from the largest value.
void expect_near(const at::Tensor& actual, const nlohmann::json& expected, at::ScalarType type,
                 const std::string& what) {
  const auto wanted = tensor_of(expected);
  const double unit = type == at::kFloat ? 0x1p-24 : type == at::kHalf ? 0x1p-11 : 0x1p-8;
  const double bound = 16 * unit * wanted.abs().max().item<double>() + 1e-6;
  const double error =
      (actual.detach().to(torch::kDouble).flatten() - wanted).abs().max().item<double>();
  EXPECT_LE(error, bound) << what << " in " << name_of(type);
}

// One run of the generator's run(): three steps, all of them compared.
void expect_python(Module& module, const nlohmann::json& all, at::ScalarType type) {
  const auto& expected = all[name_of(type)];
  const auto shape = all["shape"].get<std::vector<int64_t>>();
  const auto x = tensor_of(all["input"]).to(torch::kFloat).reshape(shape);
  torch::optim::SGD optimizer(parameters_of(module), torch::optim::SGDOptions(0.05).momentum(0.9));
  amp::GradScaler scaler({.init_scale = 256, .enabled = type == at::kHalf});
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    const auto output = forward(module, x, type);
    scaler.scale(output.to(torch::kFloat).pow(2).mean()).backward();
    scaler.unscale_(optimizer);
    if (step == 0) {
      EXPECT_EQ(expected["dtype"], name_of(output.scalar_type()));
      expect_near(output, expected["output"], type, "output");
      for (const auto& parameter : module.named_parameters()) {
        const auto gradient = parameter.value.grad();
        EXPECT_EQ(expected["grad_dtypes"][parameter.name], name_of(gradient.scalar_type()));
        // Before a BatchNorm a bias has no gradient but what roundings leave.
        if (parameter.name != "conv.bias") {
          expect_near(gradient, expected["grads"][parameter.name], type,
                      "gradient of " + parameter.name);
        }
      }
      // The norm of the unscaled gradients; far above: nothing is clipped.
      EXPECT_GT(optim::clip_grad_norm_(parameters_of(module), 1e6).item<double>(), 0.0);
    }
    EXPECT_TRUE(scaler.step(optimizer).applied());
    scaler.update();
  }
  for (const auto& parameter : module.named_parameters()) {
    if (parameter.name != "conv.bias") {
      expect_near(parameter.value, expected["weights"][parameter.name], type,
                  "weight " + parameter.name);
    }
  }
}

TEST(ScriptModule, TrainsToPythonsNumbers) {
  const auto expected = golden();
  for (const auto* name : {"conv_script", "conv_trace", "control_script"}) {
    for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf}) {
      SCOPED_TRACE(name);
      auto module = script_for_autocast(load(name));
      expect_python(module, expected[name], type);
    }
  }
}

// Casts and gradients that must be those of the first call in each type, whatever came between.
TEST(ScriptModule, FollowsTheRegionOfEachCall) {
  const auto expected = golden();
  for (const auto* name : {"conv_script", "conv_trace", "control_script"}) {
    SCOPED_TRACE(name);
    const auto shape = expected[name]["shape"].get<std::vector<int64_t>>();
    const auto x = tensor_of(expected[name]["input"]).to(torch::kFloat).reshape(shape);
    auto module = script_for_autocast(load(name));
    const auto run = [&](Module& m, at::ScalarType type) {
      for (const auto& parameter : m.parameters()) {
        parameter.mutable_grad() = at::Tensor();
      }
      const auto output = forward(m, x, type);
      EXPECT_EQ(output.scalar_type(), type);
      output.to(torch::kFloat).pow(2).mean().backward();
      std::vector<at::Tensor> results{output.detach()};
      for (const auto& parameter : m.parameters()) {
        results.push_back(parameter.grad());
      }
      return results;
    };
    for (const auto type : {at::kBFloat16, at::kBFloat16, at::kBFloat16, at::kFloat, at::kHalf,
                            at::kHalf, at::kBFloat16, at::kHalf, at::kFloat}) {
      auto fresh = script_for_autocast(load(name));
      const auto first = run(fresh, type);
      const auto here = run(module, type);
      for (size_t i = 0; i < first.size(); ++i) {
        EXPECT_TRUE(torch::equal(first[i], here[i])) << name_of(type) << " tensor " << i;
      }
    }
  }
}

TEST(ScriptModule, IsTheSameWithLibTorchsPassOnAndOff) {
  const bool before = torch::jit::autocastEnabled();
  const auto expected = golden();
  for (const bool pass : {true, false}) {
    torch::jit::setAutocastMode(pass);
    auto module = script_for_autocast(load("conv_trace"));
    expect_python(module, expected["conv_trace"], at::kBFloat16);
  }
  torch::jit::setAutocastMode(before);
}

// For the record: what LibTorch does by itself. When this fails, LibTorch was mended.
TEST(ScriptModule, LibTorchServesOneRegionsCastsToAnother) {
  auto module = load("control_script");
  const auto x = torch::ones({3, 4});
  forward(module, x, at::kBFloat16);
  const auto output = forward(module, x, at::kHalf).to(torch::kFloat).sum();
  // A c10::Error in 2.15, an exception of the script interpreter in 2.11.
  expect_contains(error_of<std::exception>([&] { output.backward(); }), "same dtype");
}

TEST(ScriptModule, SharesTensorsWithTheModuleItIsMadeFrom) {
  auto original = load("conv_script");
  auto prepared = script_for_autocast(original);
  const auto mine = parameters_of(prepared);
  const auto theirs = parameters_of(original);
  ASSERT_EQ(mine.size(), theirs.size());
  for (size_t i = 0; i < mine.size(); ++i) {
    EXPECT_TRUE(mine[i].is_same(theirs[i]));
  }
  prepared.eval();
  EXPECT_TRUE(original.is_training());
  prepared.train();
  forward(prepared, torch::randn({4, 1, 4, 4}), at::kBFloat16);
  EXPECT_EQ(original.attr("bn").toModule().attr("num_batches_tracked").toTensor().item<int>(), 1);
}

TEST(ScriptModule, IsPreparedAfterItHasRunToo) {
  auto original = load("conv_script");  // in training mode, so that its statistics do not count
  for (int i = 0; i < 3; ++i) {
    forward(original, torch::randn({4, 1, 4, 4}), at::kBFloat16);
  }
  auto prepared = script_for_autocast(script_for_autocast(original));
  expect_python(prepared, golden()["conv_script"], at::kHalf);
}

TEST(ScriptModule, IsSavedAndLoadedBack) {
  auto trained = script_for_autocast(load("conv_trace"));
  trained.eval();
  const auto x = torch::randn({4, 1, 4, 4});
  std::stringstream file;
  trained.save(file);
  auto loaded = script_for_autocast(torch::jit::load(file));
  for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    EXPECT_TRUE(torch::equal(forward(trained, x, type), forward(loaded, x, type)));
  }
}

TEST(ScriptModule, RefusesARegionInsideTheScript) {
  const auto module = load("own_region");
  expect_contains(error_of([&] { script_for_autocast(module); }), "enters torch.autocast itself");
}

}  // namespace
}  // namespace torchamp::test
