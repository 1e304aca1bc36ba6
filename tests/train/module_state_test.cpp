#include "torchamp/train/module_state.h"

#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

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

// The modules of tests/golden/make_module_names.py.
template <typename Holder>
std::shared_ptr<torch::nn::Module> module_of(const Holder& holder) {
  return holder.ptr();
}

std::vector<std::pair<std::string, std::shared_ptr<torch::nn::Module>>> modules() {
  namespace nn = torch::nn;
  const at::Tensor ones = torch::ones({3});
  const auto adaptive =
      nn::AdaptiveLogSoftmaxWithLossOptions(8, 20, {5, 10}).div_value(2.0).head_bias(true);
  const nn::TransformerEncoderLayer encoder(
      nn::TransformerEncoderLayerOptions(4, 2).dim_feedforward(6));
  const nn::TransformerDecoderLayer decoder(
      nn::TransformerDecoderLayerOptions(4, 2).dim_feedforward(6));
  nn::ModuleDict modules_by_name;
  modules_by_name->update({{"b", nn::Linear(2, 3).ptr()}, {"a", nn::PReLU().ptr()}});
  nn::ParameterList parameters;
  parameters->append(torch::ones({2}));
  parameters->append(torch::ones({1, 3}));
  nn::ParameterDict parameters_by_name;
  parameters_by_name->insert("b", torch::ones({2}));
  parameters_by_name->insert("a", torch::ones({3}));
  return {
      {"Linear", module_of(nn::Linear(2, 3))},
      {"Linear, no bias", module_of(nn::Linear(nn::LinearOptions(2, 3).bias(false)))},
      {"Bilinear", module_of(nn::Bilinear(2, 3, 4))},
      {"Conv1d", module_of(nn::Conv1d(nn::Conv1dOptions(2, 4, 3).groups(2)))},
      {"Conv2d", module_of(nn::Conv2d(2, 4, 3))},
      {"Conv3d", module_of(nn::Conv3d(nn::Conv3dOptions(2, 4, 3).bias(false)))},
      {"ConvTranspose1d", module_of(nn::ConvTranspose1d(2, 4, 3))},
      {"ConvTranspose2d", module_of(nn::ConvTranspose2d(2, 4, 3))},
      {"ConvTranspose3d", module_of(nn::ConvTranspose3d(2, 4, 3))},
      {"BatchNorm1d", module_of(nn::BatchNorm1d(3))},
      {"BatchNorm2d, not affine",
       module_of(nn::BatchNorm2d(nn::BatchNorm2dOptions(3).affine(false)))},
      {"BatchNorm3d, no statistics",
       module_of(nn::BatchNorm3d(nn::BatchNorm3dOptions(3).track_running_stats(false)))},
      {"InstanceNorm1d", module_of(nn::InstanceNorm1d(3))},
      {"InstanceNorm2d, affine",
       module_of(nn::InstanceNorm2d(nn::InstanceNorm2dOptions(3).affine(true)))},
      {"InstanceNorm3d, affine and statistics",
       module_of(nn::InstanceNorm3d(
           nn::InstanceNorm3dOptions(3).affine(true).track_running_stats(true)))},
      {"LayerNorm", module_of(nn::LayerNorm(nn::LayerNormOptions({2, 3})))},
      {"GroupNorm", module_of(nn::GroupNorm(2, 4))},
      {"Embedding", module_of(nn::Embedding(5, 2))},
      {"EmbeddingBag", module_of(nn::EmbeddingBag(5, 2))},
      {"RNN", module_of(nn::RNN(nn::RNNOptions(2, 3).num_layers(2)))},
      {"LSTM, bidirectional",
       module_of(nn::LSTM(nn::LSTMOptions(2, 3).num_layers(2).bidirectional(true)))},
      {"LSTM, projected",
       module_of(nn::LSTM(nn::LSTMOptions(2, 4).num_layers(2).proj_size(3).bidirectional(true)))},
      {"GRU, no bias", module_of(nn::GRU(nn::GRUOptions(2, 3).bias(false).bidirectional(true)))},
      {"RNNCell", module_of(nn::RNNCell(2, 3))},
      {"LSTMCell", module_of(nn::LSTMCell(2, 3))},
      {"GRUCell", module_of(nn::GRUCell(nn::GRUCellOptions(2, 3).bias(false)))},
      {"MultiheadAttention", module_of(nn::MultiheadAttention(4, 2))},
      {"MultiheadAttention, kdim and vdim",
       module_of(nn::MultiheadAttention(nn::MultiheadAttentionOptions(4, 2).kdim(3).vdim(5)))},
      {"MultiheadAttention, bias_kv",
       module_of(nn::MultiheadAttention(nn::MultiheadAttentionOptions(4, 2).add_bias_kv(true)))},
      {"MultiheadAttention, no bias",
       module_of(nn::MultiheadAttention(nn::MultiheadAttentionOptions(4, 2).bias(false)))},
      {"TransformerEncoderLayer", module_of(encoder)},
      {"TransformerDecoderLayer", module_of(decoder)},
      {"TransformerEncoder",
       module_of(nn::TransformerEncoder(
           nn::TransformerEncoderOptions(encoder, 2)
               .norm(nn::AnyModule(nn::LayerNorm(nn::LayerNormOptions({4}))))))},
      {"TransformerDecoder",
       module_of(nn::TransformerDecoder(nn::TransformerDecoderOptions(decoder, 2)))},
      {"Transformer",
       module_of(nn::Transformer(nn::TransformerOptions(4, 2, 1, 1).dim_feedforward(6)))},
      {"PReLU", module_of(nn::PReLU(nn::PReLUOptions().num_parameters(3)))},
      {"AdaptiveLogSoftmaxWithLoss", module_of(nn::AdaptiveLogSoftmaxWithLoss(adaptive))},
      {"Sequential", module_of(nn::Sequential(nn::Linear(2, 3), nn::ReLU(), nn::Linear(3, 2)))},
      {"Sequential, named",
       module_of(nn::Sequential(
           {{"first", nn::Linear(2, 3)}, {"act", nn::ReLU()}, {"second", nn::Linear(3, 2)}}))},
      {"ModuleList", module_of(nn::ModuleList(nn::Linear(2, 3), nn::PReLU()))},
      {"ModuleDict", module_of(modules_by_name)},
      {"ParameterList", module_of(parameters)},
      {"ParameterDict", module_of(parameters_by_name)},
      {"CrossEntropyLoss",
       module_of(nn::CrossEntropyLoss(nn::CrossEntropyLossOptions().weight(ones)))},
      {"NLLLoss", module_of(nn::NLLLoss(nn::NLLLossOptions().weight(ones)))},
      {"BCELoss", module_of(nn::BCELoss(nn::BCELossOptions().weight(ones)))},
      {"BCEWithLogitsLoss", module_of(nn::BCEWithLogitsLoss(
                                nn::BCEWithLogitsLossOptions().weight(ones).pos_weight(ones)))},
      {"MultiLabelSoftMarginLoss",
       module_of(nn::MultiLabelSoftMarginLoss(nn::MultiLabelSoftMarginLossOptions().weight(ones)))},
      {"MultiMarginLoss",
       module_of(nn::MultiMarginLoss(nn::MultiMarginLossOptions().weight(ones)))},
  };
}

TEST(ModuleState, OfEveryModuleHasPythonsNamesOrderShapesAndDtypes) {
  std::ifstream file(golden("module_names.json"));
  const auto expected = nlohmann::json::parse(file);
  const auto made = modules();
  EXPECT_EQ(made.size(), expected.size());
  for (const auto& [key, module] : made) {
    nlohmann::json entries = nlohmann::json::array();
    const StateDict dict = module_state_dict(*module);
    for (const auto& [name, value] : dict.entries()) {
      const at::Tensor& tensor = value.to_tensor();
      const bool is_float = tensor.scalar_type() == at::kFloat;
      EXPECT_TRUE(is_float || tensor.scalar_type() == at::kLong) << key;
      entries.push_back(
          {std::get<std::string>(name), tensor.sizes().vec(), is_float ? "float32" : "int64"});
    }
    ASSERT_TRUE(expected.contains(key)) << key;
    EXPECT_EQ(entries.dump(), expected[key].dump()) << key;
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
        "'1.bias' is an int, not a tensor", "'1.num_batches_tracked' is Float[], not Long[]"}) {
    EXPECT_NE(error.find(text), std::string::npos) << error;
  }
  EXPECT_TRUE(same(net->parameters()[0], before));
}

}  // namespace
}  // namespace torchamp::train
