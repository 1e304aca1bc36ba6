// Python reads what C++ writes and goes on from it, and C++ from what Python then writes.

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <torch/torch.h>

#include "checkpoint/checkpoint_support.h"
#include "checkpoint/mixed_training.h"
#include "support/fingerprint.h"
#include "torchamp/checkpoint/checkpoint.h"
#include "torchamp/optim/ema.h"
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

const char* const kNoPython =
    "no Python that can import torch was found at configure time; name one with "
    "-DTORCHAMP_PYTHON_WITH_TORCH=... (the golden files stand in)";

// Runs `script` of this folder on the files in `folder`; its exit status.
int run_python(const std::string& script, const TemporaryFolder& folder) {
  const std::string command = "'" TORCHAMP_PYTHON_WITH_TORCH "' '" TORCHAMP_SOURCE_DIR
                              "/tests/checkpoint/" +
                              script + "' '" + folder.path().string() + "'";
  return std::system(command.c_str());
}

TEST(PythonInterop, PythonReadsGoesOnAndWritesBack) {
  if (std::string(TORCHAMP_PYTHON_WITH_TORCH).empty()) GTEST_SKIP() << kNoPython;
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
  optim::Ema ema(*nets[0], {.decay = 0.75});
  ema.update();
  save(folder / "ema.pt", ema.state_dict());
  save(folder / "rng.pt", train::rng_state_dict());

  ASSERT_EQ(run_python("interop.py", folder), 0);

  // The order of operations of LibTorch's C++ Adam differs from Python's: a few roundings a step on
  // values below 4 (8 * 2^-24 = 5e-7). SGD is the same to the bit.
  expect_same_training(folder / "adamw_back.pt", nets[0], adamw, 5e-7);
  expect_same_training(folder / "adam_back.pt", nets[1], adam, 5e-7);
  expect_same_training(folder / "sgd_back.pt", nets[2], sgd, 0);
  const StateDict averages = load(folder / "ema_back.pt");
  ema.load_state_dict(averages);
  EXPECT_TRUE(same(ema.state_dict(), averages));
  EXPECT_EQ(ema.n_averaged(), 2);
  const StateDict numbers = load(folder / "rng_back.pt");
  EXPECT_TRUE(same(torch::randn({101}), numbers.at("numbers").to_tensor()));
  EXPECT_TRUE(same(torch::randperm(100), numbers.at("order").to_tensor()));
  train::load_rng_state_dict(load(folder / "rng_of_python.pt"));
  EXPECT_TRUE(same(torch::randn({101}), numbers.at("later").to_tensor()));
}

// Ten steps here, five here and five in Python, five in Python and five here: the same bits of
// weights, optimizer and scaler.
class PythonGoesOn : public ::testing::Test {
 protected:
  void SetUp() override {
    at::set_num_threads(1);
    if (std::string(TORCHAMP_PYTHON_WITH_TORCH).empty()) GTEST_SKIP() << kNoPython;
    for (const MixedCase& each : mixed_cases()) {
      MixedTraining training(each);
      save(folder_ / (each.name() + "_0.pt"), training.state_dict());
      training.steps(0, 5);
      save(folder_ / (each.name() + "_here_5.pt"), training.state_dict());
      training.steps(5, 10);
      save(folder_ / (each.name() + "_here_10.pt"), training.state_dict());
    }
    ASSERT_EQ(run_python("interop_mixed.py", folder_), 0);
    const std::string version = load(folder_ / "version.pt").at("version").to_string();
    if (version.substr(0, version.find('+')) != TORCH_VERSION) {
      GTEST_SKIP() << "Bits are those of one version: Python's PyTorch is " << version
                   << ", LibTorch is " << TORCH_VERSION << ".";
    }
  }
  ~PythonGoesOn() override { at::set_num_threads(threads_); }

  StateDict file(const MixedCase& each, const char* which) const {
    return load(folder_ / (each.name() + which + ".pt"));
  }

 private:
  int threads_ = at::get_num_threads();
  TemporaryFolder folder_;
};

TEST_F(PythonGoesOn, FromAFileWrittenHereWithTheBitsOfARunThatStayedHere) {
  for (const MixedCase& each : mixed_cases()) {
    expect_same_run(file(each, "_python_10_from_here"), file(each, "_here_10"), each.name());
  }
}

TEST_F(PythonGoesOn, AndCppFromPythonsFileWithTheBitsOfARunThatStayedInPython) {
  for (const MixedCase& each : mixed_cases()) {
    MixedTraining training(each);
    training.load_state_dict(file(each, "_python_5"));
    training.steps(5, 10);
    expect_same_run(training.state_dict(), file(each, "_python_10"), each.name());
  }
}

// The same from files that were written once, so that no Python is needed here.
TEST(PythonGolden, GoesOnFromPythonsFileWithTheBitsOfARunThatStayedInPython) {
  const std::string folder = golden("mixed_training/" TORCH_VERSION);
  if (!std::filesystem::exists(folder)) {
    GTEST_SKIP() << "There are no files of PyTorch " << TORCH_VERSION
                 << "; interop_mixed.py --golden writes them.";
  }
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  std::ifstream recorded(folder + "/fingerprint.json");
  const std::string difference =
      testing::fingerprint_difference(nlohmann::json::parse(recorded), testing::fingerprint());
  for (const MixedCase& each : mixed_cases()) {
    const std::string file = folder + "/" + each.name();
    if (!std::filesystem::exists(file + "_5.pt")) continue;
    MixedTraining training(each);
    training.load_state_dict(load(file + "_5.pt"));
    expect_same_run(training.state_dict(), load(file + "_5.pt"), each.name());
    training.steps(5, 10);
    if (difference.empty()) {
      expect_same_run(training.state_dict(), load(file + "_10.pt"), each.name());
    }
  }
  at::set_num_threads(threads);
  if (!difference.empty()) {
    GTEST_SKIP() << "Loaded, but the bits of later steps are equal on the machine that wrote the "
                    "files only: "
                 << difference;
  }
}

}  // namespace
}  // namespace torchamp::checkpoint
