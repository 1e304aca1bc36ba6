#include "torchamp/optim/cast_parameters.h"

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/rnn.h>

namespace torchamp::optim::detail {
namespace {

template <typename... Kinds>
bool is_one_of(const torch::nn::Module& module) {
  return ((dynamic_cast<const Kinds*>(&module) != nullptr) || ...);
}

}  // namespace

std::vector<std::string> cast_parameters(const torch::nn::Module& module) {
  namespace nn = torch::nn;
  // A bias is left out: for input of three dimensions torch::nn::Linear adds it to the product, and
  // an addition is not cast.
  if (is_one_of<nn::LinearImpl>(module)) return {"weight"};
  if (is_one_of<nn::Conv1dImpl, nn::Conv2dImpl, nn::Conv3dImpl, nn::ConvTranspose1dImpl,
                nn::ConvTranspose2dImpl, nn::ConvTranspose3dImpl>(module)) {
    return {"weight", "bias"};
  }
  // The same for its biases; bias_k and bias_v are concatenated with float32 or 16-bit keys.
  if (is_one_of<nn::MultiheadAttentionImpl>(module)) {
    return {"in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight"};
  }
  if (is_one_of<nn::RNNCellImpl, nn::LSTMCellImpl, nn::GRUCellImpl>(module)) {
    return {"weight_ih", "weight_hh", "bias_ih", "bias_hh"};
  }
  if (is_one_of<nn::RNNImpl, nn::LSTMImpl, nn::GRUImpl>(module)) {
    std::vector<std::string> names;
    for (const auto& item : module.named_parameters(/*recurse=*/false)) names.push_back(item.key());
    return names;
  }
  return {};
}

}  // namespace torchamp::optim::detail
