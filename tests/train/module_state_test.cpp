#include "torchamp/train/module_state.h"

#include <string>

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "checkpoint/checkpoint_support.h"
#include "torchamp/checkpoint/checkpoint.h"

namespace torchamp::train {
namespace {

using base::CheckpointError;
using base::StateDict;

torch::nn::Sequential model() {
  return torch::nn::Sequential(torch::nn::Linear(3, 2), torch::nn::BatchNorm1d(2));
}

std::string error_of(torch::nn::Module& module, const StateDict& dict) {
  try {
    load_module_state_dict(module, dict);
    return "";
  } catch (const CheckpointError& error) {
    return error.what();
  }
}

// The file is Python's state_dict of the same model: tests/golden/checkpoint/make_checkpoints.py.
TEST(ModuleState, NamesAndOrdersEntriesAsPython) {
  const StateDict python = checkpoint::load(golden("checkpoint/2.15.0/model.pt"));
  torch::nn::Sequential net = model();
  load_module_state_dict(*net, python);
  EXPECT_TRUE(same(module_state_dict(*net), python));
}

TEST(ModuleState, LeavesOutAParameterThatIsNotThere) {
  torch::nn::Sequential net(torch::nn::Linear(torch::nn::LinearOptions(2, 2).bias(false)));
  const StateDict dict = module_state_dict(*net);
  ASSERT_EQ(dict.size(), 1U);
  EXPECT_TRUE(dict.contains("0.weight"));
}

TEST(ModuleState, CopiesIntoTheParametersThatAreThere) {
  torch::nn::Sequential from = model();
  torch::nn::Sequential to = model();
  const at::Tensor weight = to->parameters()[0];
  const void* const place = weight.const_data_ptr();
  load_module_state_dict(*to, module_state_dict(*from));
  EXPECT_TRUE(same(weight, from->parameters()[0]));
  EXPECT_EQ(weight.const_data_ptr(), place);
  EXPECT_TRUE(weight.requires_grad());
  EXPECT_FALSE(weight.grad_fn());
}

TEST(ModuleState, ConvertsFloatingDtypes) {
  torch::nn::Sequential net = model();
  for (const at::ScalarType dtype : {at::kHalf, at::kBFloat16, at::kDouble}) {
    StateDict dict = module_state_dict(*net);
    dict.set("0.bias", torch::tensor({1.5F, -2.25F}).to(dtype));
    load_module_state_dict(*net, dict);
    EXPECT_TRUE(same(net->parameters()[1], torch::tensor({1.5F, -2.25F})));
  }
}

TEST(ModuleState, ListsEveryDifferenceAndChangesNothing) {
  torch::nn::Sequential net = model();
  const at::Tensor before = net->parameters()[0].clone();
  StateDict dict = module_state_dict(*net);
  dict.set("0.weight", torch::zeros({2, 3}));
  dict.erase("0.bias");
  dict.erase("1.running_var");
  dict.set("extra", torch::zeros({1}));
  dict.set("1.weight", torch::zeros({3}));
  dict.set("1.bias", 5);
  dict.set("1.num_batches_tracked", torch::tensor(1.5F));
  const std::string error = error_of(*net, dict);
  for (const char* text :
       {"the checkpoint is of another model", "2 missing ('0.bias', '1.running_var')",
        "1 unexpected ('extra')",
        "3 of another shape or type ('1.weight' is Float[3], not Float[2]",
        "'1.bias' is a int, not a tensor", "'1.num_batches_tracked' is Float[], not Long[]"}) {
    EXPECT_NE(error.find(text), std::string::npos) << error;
  }
  EXPECT_TRUE(same(net->parameters()[0], before));
}

}  // namespace
}  // namespace torchamp::train
