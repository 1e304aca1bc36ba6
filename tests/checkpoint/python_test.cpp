// Python reads what C++ writes and goes on from it, and C++ from what Python then writes.

#include <cstdlib>
#include <string>

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "checkpoint/checkpoint_support.h"
#include "torchamp/checkpoint/checkpoint.h"
#include "torchamp/optim/state.h"
#include "torchamp/train/module_state.h"
#include "torchamp/train/rng_state.h"

namespace torchamp::checkpoint {
namespace {

using base::List;
using base::StateDict;
using base::Tuple;
using base::Value;

StateDict values() {
  StateDict deep;
  deep.set("deep", List{{Tuple{{1, List{{2}}}}}});
  StateDict dict;
  dict.set("none", Value());
  dict.set("bools", List{{true, false}});
  dict.set("ints", Tuple{{0, 255, 256, 65536, -1, int64_t{1} << 40, INT64_MAX, INT64_MIN}});
  dict.set("float", 1.5);
  dict.set("text", "na\xc3\xafve");
  dict.set("empty", Tuple{{List{}, Tuple{}, StateDict()}});
  dict.set(int64_t{7}, deep);
  return dict;
}

StateDict tensors() {
  const at::Tensor base = torch::arange(24.0F).reshape({2, 3, 4}).requires_grad_();
  const at::Tensor three = torch::arange(3.0F);
  StateDict dict;
  dict.set("base", base);
  dict.set("transposed", base.transpose(0, 2));
  dict.set("scalar", torch::tensor(2.5F));
  dict.set("empty", torch::empty({0, 3}));
  for (const auto& [name, dtype] : std::initializer_list<std::pair<const char*, at::ScalarType>>{
           {"float64", at::kDouble},
           {"float16", at::kHalf},
           {"bfloat16", at::kBFloat16},
           {"int64", at::kLong},
           {"int32", at::kInt},
           {"int16", at::kShort},
           {"int8", at::kChar},
           {"uint8", at::kByte},
           {"uint16", at::kUInt16},
           {"uint32", at::kUInt32},
           {"uint64", at::kUInt64},
           {"float8_e4m3fn", at::kFloat8_e4m3fn},
           {"float8_e5m2", at::kFloat8_e5m2}}) {
    dict.set(name, three.to(dtype));
  }
  dict.set("bool", torch::tensor({false, true}));
  dict.set("complex64", at::complex(three, -three));
  return dict;
}

void train(torch::nn::Sequential& net, torch::optim::Optimizer& optimizer, int first, int last) {
  for (int step = first; step < last; ++step) {
    set_gradients(net, step);
    optimizer.step();
  }
}

void save_training(const std::filesystem::path& path, torch::nn::Sequential& net,
                   torch::optim::Optimizer& optimizer) {
  StateDict dict;
  dict.set("model_state_dict", train::module_state_dict(*net));
  dict.set("optimizer_state_dict", optim::optimizer_state_dict(optimizer));
  save(path, dict);
}

// Five steps here against three here and two in Python.
void expect_same_training(const std::filesystem::path& path, torch::nn::Sequential& net,
                          torch::optim::Optimizer& optimizer, double tolerance) {
  train(net, optimizer, 3, 5);
  const StateDict python = load(path);
  const StateDict& weights = python.at("model_state_dict").to_dict();
  const StateDict trained = train::module_state_dict(*net);
  for (const auto& [key, value] : trained.entries()) {
    const at::Tensor& expected = weights.at(key).to_tensor();
    if (tolerance == 0) {
      EXPECT_TRUE(same(value.to_tensor(), expected)) << path << base::to_string(key);
    } else {
      EXPECT_TRUE(at::allclose(value.to_tensor(), expected, tolerance, tolerance))
          << path << base::to_string(key);
    }
  }
  // What Python wrote after its steps loads here, and says the same.
  optim::load_optimizer_state_dict(optimizer, python.at("optimizer_state_dict").to_dict());
  const StateDict own = optim::optimizer_state_dict(optimizer);
  EXPECT_TRUE(same(own.at("state").to_dict(),
                   python.at("optimizer_state_dict").to_dict().at("state").to_dict()));
}

TEST(PythonInterop, PythonReadsGoesOnAndWritesBack) {
  const std::string interpreter = TORCHAMP_PYTHON_WITH_TORCH;
  if (interpreter.empty()) {
    GTEST_SKIP() << "no Python that can import torch was found at configure time; name one with "
                    "-DTORCHAMP_PYTHON_WITH_TORCH=... (the golden files stand in)";
  }
  const TemporaryFolder folder;
  save(folder / "values.pt", values());
  save(folder / "tensors.pt", tensors());
  torch::manual_seed(2);
  torch::nn::Sequential nets[] = {model(), model(), model()};
  torch::optim::AdamW adamw(nets[0]->parameters(), torch::optim::AdamWOptions(0.125).amsgrad(true));
  torch::optim::Adam adam(nets[1]->parameters(), torch::optim::AdamOptions(0.125));
  torch::optim::SGD sgd(nets[2]->parameters(),
                        torch::optim::SGDOptions(0.125).momentum(0.5).weight_decay(0.25));
  train(nets[0], adamw, 0, 3);
  train(nets[1], adam, 0, 3);
  train(nets[2], sgd, 0, 3);
  save_training(folder / "adamw.pt", nets[0], adamw);
  save_training(folder / "adam.pt", nets[1], adam);
  save_training(folder / "sgd.pt", nets[2], sgd);
  save(folder / "rng.pt", train::rng_state_dict());

  const std::string command = "'" + interpreter +
                              "' '" TORCHAMP_SOURCE_DIR "/tests/checkpoint/interop.py' '" +
                              folder.path().string() + "'";
  ASSERT_EQ(std::system(command.c_str()), 0) << command;

  // The order of operations of LibTorch's C++ Adam differs from Python's: a few roundings a step on
  // values below 4 (8 * 2^-24 = 5e-7). SGD is the same to the bit.
  expect_same_training(folder / "adamw_back.pt", nets[0], adamw, 5e-7);
  expect_same_training(folder / "adam_back.pt", nets[1], adam, 5e-7);
  expect_same_training(folder / "sgd_back.pt", nets[2], sgd, 0);
  const StateDict numbers = load(folder / "rng_back.pt");
  EXPECT_TRUE(same(torch::randn({101}), numbers.at("numbers").to_tensor()));
  EXPECT_TRUE(same(torch::randperm(100), numbers.at("order").to_tensor()));
}

}  // namespace
}  // namespace torchamp::checkpoint
