#pragma once
// A decoder-only transformer as GPT-2 (Radford et al. 2019, section 2.3): LayerNorm before each
// part, learned positions, tanh-GELU, biases; the output layer has its own weight and no bias.

#include "models/model.h"

namespace torchamp::models {

/// Causal self-attention over all heads at once.
class AttentionImpl : public torch::nn::Module {
 public:
  AttentionImpl(int64_t d_model, int64_t num_heads);
  torch::Tensor forward(const torch::Tensor& x);

 private:
  int64_t num_heads_;
  Linear c_attn_;
  Linear c_proj_;
};
TORCH_MODULE(Attention);

/// Linear to four times the width, tanh-GELU, Linear back.
class FeedForwardImpl : public torch::nn::Module {
 public:
  explicit FeedForwardImpl(int64_t d_model);
  torch::Tensor forward(const torch::Tensor& x);

 private:
  Linear c_fc_;
  Linear c_proj_;
};
TORCH_MODULE(FeedForward);

/// x <- x + attn(ln_1(x)); x <- x + mlp(ln_2(x)).
class GptBlockImpl : public torch::nn::Module {
 public:
  GptBlockImpl(int64_t d_model, int64_t num_heads);
  torch::Tensor forward(torch::Tensor x);

 private:
  torch::nn::LayerNorm ln_1_;
  Attention attn_;
  torch::nn::LayerNorm ln_2_;
  FeedForward mlp_;
};
TORCH_MODULE(GptBlock);

/// Width 512, 6 layers, 8 heads, 256 positions and 8192 tokens by default: 27,435,008 parameters.
/// Takes token indices [B, T] with T up to the context; returns logits [B, T, vocab_size].
class Gpt : public Model {
 public:
  explicit Gpt(const ModelOptions& options = {});

  torch::Tensor forward(torch::Tensor input) override;
  InputSpec input_spec() const override;

 private:
  int64_t vocab_size_;
  int64_t context_;
  torch::nn::Embedding wte_{nullptr};
  torch::nn::Embedding wpe_{nullptr};
  torch::nn::ModuleList h_;
  torch::nn::LayerNorm ln_f_{nullptr};
  Linear lm_head_{nullptr};
};

}  // namespace torchamp::models
