// Which parameters to_low_precision() converts: those whose 16-bit value gives the bits of the
// float32 one inside of a region, in the output and in every gradient. The oracle is LibTorch's own
// module with float32 weights.

#include <functional>
#include <memory>
#include <ostream>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "torchamp/amp/autocast.h"
#include "torchamp/optim/low_precision.h"

namespace torchamp::optim {
namespace {

namespace nn = torch::nn;

struct Kind {
  const char* name;
  std::function<std::shared_ptr<nn::Module>()> make;
  std::vector<int64_t> input;
  std::function<at::Tensor(nn::Module&, const at::Tensor&)> run;
  std::set<std::string> converted;
};

void PrintTo(const Kind& kind, std::ostream* out) { *out << kind.name; }

template <typename Impl>
std::function<at::Tensor(nn::Module&, const at::Tensor&)> plain() {
  return [](nn::Module& module, const at::Tensor& x) {
    return dynamic_cast<Impl&>(module).forward(x);
  };
}

template <typename Impl>
std::function<at::Tensor(nn::Module&, const at::Tensor&)> recurrent() {
  return [](nn::Module& module, const at::Tensor& x) {
    return std::get<0>(dynamic_cast<Impl&>(module).forward(x));
  };
}

at::Tensor attend(nn::Module& module, const at::Tensor& x) {
  return std::get<0>(dynamic_cast<nn::MultiheadAttentionImpl&>(module).forward(x, x, x));
}

const std::set<std::string> kWeight = {"weight"};
const std::set<std::string> kBoth = {"weight", "bias"};
const std::set<std::string> kCell = {"weight_ih", "weight_hh", "bias_ih", "bias_hh"};
const std::set<std::string> kLayer = {"weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"};

template <typename Impl, typename... Args>
std::function<std::shared_ptr<nn::Module>()> maker(Args... args) {
  return [args...] { return std::make_shared<Impl>(args...); };
}

std::vector<Kind> kinds() {
  return {
      {"Linear2d", maker<nn::LinearImpl>(24, 8), {5, 24}, plain<nn::LinearImpl>(), kWeight},
      {"Linear3d", maker<nn::LinearImpl>(24, 8), {3, 5, 24}, plain<nn::LinearImpl>(), kWeight},
      {"Conv1d", maker<nn::Conv1dImpl>(4, 6, 3), {2, 4, 9}, plain<nn::Conv1dImpl>(), kBoth},
      {"Conv2d", maker<nn::Conv2dImpl>(4, 6, 3), {2, 4, 9, 9}, plain<nn::Conv2dImpl>(), kBoth},
      {"Conv2dReflect",
       maker<nn::Conv2dImpl>(nn::Conv2dOptions(4, 6, 3).padding(1).padding_mode(torch::kReflect)),
       {2, 4, 9, 9},
       plain<nn::Conv2dImpl>(),
       kBoth},
      {"Conv3d", maker<nn::Conv3dImpl>(2, 3, 3), {2, 2, 5, 5, 5}, plain<nn::Conv3dImpl>(), kBoth},
      {"ConvTranspose1d",
       maker<nn::ConvTranspose1dImpl>(4, 6, 3),
       {2, 4, 9},
       [](nn::Module& m, const at::Tensor& x) {
         return dynamic_cast<nn::ConvTranspose1dImpl&>(m).forward(x);
       },
       kBoth},
      {"ConvTranspose2d",
       maker<nn::ConvTranspose2dImpl>(4, 6, 3),
       {2, 4, 7, 7},
       [](nn::Module& m, const at::Tensor& x) {
         return dynamic_cast<nn::ConvTranspose2dImpl&>(m).forward(x);
       },
       kBoth},
      {"ConvTranspose3d",
       maker<nn::ConvTranspose3dImpl>(2, 3, 3),
       {2, 2, 4, 4, 4},
       [](nn::Module& m, const at::Tensor& x) {
         return dynamic_cast<nn::ConvTranspose3dImpl&>(m).forward(x);
       },
       kBoth},
      {"MultiheadAttention",
       maker<nn::MultiheadAttentionImpl>(16, 4),
       {6, 3, 16},
       attend,
       {"in_proj_weight", "out_proj.weight"}},
      {"MultiheadAttentionBiasKv",
       maker<nn::MultiheadAttentionImpl>(
           nn::MultiheadAttentionOptions(16, 4).add_bias_kv(true).kdim(16).vdim(16)),
       {6, 3, 16},
       attend,
       {"in_proj_weight", "out_proj.weight"}},
      {"MultiheadAttentionOwnWidths",
       maker<nn::MultiheadAttentionImpl>(nn::MultiheadAttentionOptions(16, 4).kdim(8).vdim(8)),
       {6, 3, 16},
       [](nn::Module& module, const at::Tensor& x) {
         return std::get<0>(dynamic_cast<nn::MultiheadAttentionImpl&>(module).forward(
             x, x.narrow(2, 0, 8), x.narrow(2, 8, 8)));
       },
       {"q_proj_weight", "k_proj_weight", "v_proj_weight", "out_proj.weight"}},
      {"TransformerEncoderLayer",
       maker<nn::TransformerEncoderLayerImpl>(
           nn::TransformerEncoderLayerOptions(16, 4).dim_feedforward(32).dropout(0)),
       {6, 3, 16},
       [](nn::Module& m, const at::Tensor& x) {
         return dynamic_cast<nn::TransformerEncoderLayerImpl&>(m).forward(x);
       },
       {"self_attn.in_proj_weight", "self_attn.out_proj.weight", "linear1.weight",
        "linear2.weight"}},
      {"TransformerDecoderLayer",
       maker<nn::TransformerDecoderLayerImpl>(
           nn::TransformerDecoderLayerOptions(16, 4).dim_feedforward(32).dropout(0)),
       {6, 3, 16},
       [](nn::Module& m, const at::Tensor& x) {
         return dynamic_cast<nn::TransformerDecoderLayerImpl&>(m).forward(x, x);
       },
       {"self_attn.in_proj_weight", "self_attn.out_proj.weight", "multihead_attn.in_proj_weight",
        "multihead_attn.out_proj.weight", "linear1.weight", "linear2.weight"}},
      {"Rnn", maker<nn::RNNImpl>(8, 12), {5, 3, 8}, recurrent<nn::RNNImpl>(), kLayer},
      {"Gru", maker<nn::GRUImpl>(8, 12), {5, 3, 8}, recurrent<nn::GRUImpl>(), kLayer},
      {"Lstm", maker<nn::LSTMImpl>(8, 12), {5, 3, 8}, recurrent<nn::LSTMImpl>(), kLayer},
      {"RnnCell",
       maker<nn::RNNCellImpl>(8, 12),
       {3, 8},
       [](nn::Module& m, const at::Tensor& x) {
         return dynamic_cast<nn::RNNCellImpl&>(m).forward(x);
       },
       kCell},
      {"GruCell",
       maker<nn::GRUCellImpl>(8, 12),
       {3, 8},
       [](nn::Module& m, const at::Tensor& x) {
         return dynamic_cast<nn::GRUCellImpl&>(m).forward(x);
       },
       kCell},
      {"LstmCell",
       maker<nn::LSTMCellImpl>(8, 12),
       {3, 8},
       [](nn::Module& m, const at::Tensor& x) {
         return std::get<0>(dynamic_cast<nn::LSTMCellImpl&>(m).forward(x));
       },
       kCell},
      {"LayerNorm",
       maker<nn::LayerNormImpl>(nn::LayerNormOptions({8})),
       {3, 8},
       plain<nn::LayerNormImpl>(),
       {}},
      {"BatchNorm1d", maker<nn::BatchNorm1dImpl>(8), {3, 8}, plain<nn::BatchNorm1dImpl>(), {}},
      {"GroupNorm", maker<nn::GroupNormImpl>(2, 8), {3, 8, 5}, plain<nn::GroupNormImpl>(), {}},
      {"InstanceNorm1d",
       maker<nn::InstanceNorm1dImpl>(nn::InstanceNorm1dOptions(8).affine(true)),
       {3, 8, 5},
       plain<nn::InstanceNorm1dImpl>(),
       {}},
      {"PRelu",
       maker<nn::PReLUImpl>(nn::PReLUOptions().num_parameters(8)),
       {3, 8, 5},
       plain<nn::PReLUImpl>(),
       {}},
      {"Bilinear",
       maker<nn::BilinearImpl>(8, 8, 4),
       {3, 8},
       [](nn::Module& m, const at::Tensor& x) {
         return dynamic_cast<nn::BilinearImpl&>(m).forward(x, x);
       },
       {}},
      {"Embedding",
       maker<nn::EmbeddingImpl>(8, 4),
       {3, 8},
       [](nn::Module& m, const at::Tensor& x) {
         return dynamic_cast<nn::EmbeddingImpl&>(m).forward(x.detach().gt(0).to(torch::kLong));
       },
       {}},
  };
}

struct Passed {
  at::Tensor output;
  at::Tensor input_grad;
  std::vector<at::Tensor> grads;
};

Passed pass(const Kind& kind, nn::Module& module) {
  torch::manual_seed(2);
  const at::Tensor x = torch::randn(kind.input).requires_grad_();
  Passed result;
  {
    amp::Autocast region(torch::kCPU, torch::kBFloat16);
    result.output = kind.run(module, x);
  }
  const at::Tensor factor = torch::randn(result.output.sizes());
  (result.output.to(torch::kFloat) * factor).sum().backward();
  result.input_grad = x.grad();
  for (const at::Tensor& parameter : module.parameters()) {
    result.grads.push_back(main_grad(parameter));
  }
  return result;
}

class LowPrecisionModules : public ::testing::TestWithParam<Kind> {};

TEST_P(LowPrecisionModules, GiveTheBitsOfFloat32WeightsUnderAutocast) {
  const Kind& kind = GetParam();
  torch::manual_seed(1);
  const auto reference = kind.make();
  torch::manual_seed(1);
  const auto module = kind.make();
  const auto names = to_low_precision(*module, torch::kBFloat16);
  EXPECT_EQ(std::set<std::string>(names.begin(), names.end()), kind.converted);

  for (int repeat = 0; repeat < 2; ++repeat) {
    const Passed expected = pass(kind, *reference);
    const Passed actual = pass(kind, *module);
    ASSERT_EQ(actual.output.scalar_type(), expected.output.scalar_type());
    EXPECT_TRUE(torch::equal(actual.output, expected.output));
    ASSERT_EQ(actual.input_grad.defined(), expected.input_grad.defined());
    if (expected.input_grad.defined()) {
      EXPECT_TRUE(torch::equal(actual.input_grad, expected.input_grad));
    }
    const auto items = module->named_parameters().items();
    for (size_t i = 0; i < expected.grads.size(); ++i) {
      EXPECT_TRUE(torch::equal(actual.grads[i], expected.grads[i]))
          << items[i].key() << ", pass " << repeat;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Every, LowPrecisionModules, ::testing::ValuesIn(kinds()),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace torchamp::optim
