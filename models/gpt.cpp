#include "models/gpt.h"

#include <utility>

#include "models/check.h"

// B batch, T tokens, D width, H heads, E width of a head, V vocabulary

namespace torchamp::models {
namespace {

constexpr double kInitStd = 0.02;  // Radford et al. 2018, section 4.1

torch::nn::LayerNorm layer_norm(int64_t d_model) {
  return torch::nn::LayerNorm(torch::nn::LayerNormOptions({d_model}));
}

// Weights N(0, 0.02), biases 0; LayerNorm keeps its 1 and 0.
void init_weights(torch::nn::Module& root) {
  torch::NoGradGuard no_grad;
  for (const auto& module : root.modules(/*include_self=*/false)) {
    if (auto* linear = module->as<LinearImpl>()) {
      linear->weight.normal_(0.0, kInitStd);
      if (linear->bias.defined()) {
        linear->bias.zero_();
      }
    } else if (auto* embedding = module->as<torch::nn::EmbeddingImpl>()) {
      embedding->weight.normal_(0.0, kInitStd);
    }
  }
}

}  // namespace

AttentionImpl::AttentionImpl(int64_t d_model, int64_t num_heads)
    : num_heads_(num_heads),
      c_attn_(register_module("c_attn", Linear(d_model, 3 * d_model))),
      c_proj_(register_module("c_proj", Linear(d_model, d_model))) {}

torch::Tensor AttentionImpl::forward(const torch::Tensor& x_BTD) {
  const int64_t B = x_BTD.size(0);
  const int64_t T = x_BTD.size(1);
  const int64_t D = x_BTD.size(2);
  std::vector<torch::Tensor> qkv = c_attn_(x_BTD).split(D, /*dim=*/2);
  for (torch::Tensor& part : qkv) {
    part = part.view({B, T, num_heads_, D / num_heads_}).transpose(1, 2);  // [B, H, T, E]
  }
  torch::Tensor y_BHTE = at::scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], /*attn_mask=*/{},
                                                          /*dropout_p=*/0.0, /*is_causal=*/true);
  return c_proj_(y_BHTE.transpose(1, 2).reshape({B, T, D}));
}

FeedForwardImpl::FeedForwardImpl(int64_t d_model)
    : c_fc_(register_module("c_fc", Linear(d_model, 4 * d_model))),
      c_proj_(register_module("c_proj", Linear(4 * d_model, d_model))) {}

torch::Tensor FeedForwardImpl::forward(const torch::Tensor& x) {
  return c_proj_(torch::gelu(c_fc_(x), "tanh"));
}

GptBlockImpl::GptBlockImpl(int64_t d_model, int64_t num_heads)
    : ln_1_(register_module("ln_1", layer_norm(d_model))),
      attn_(register_module("attn", Attention(d_model, num_heads))),
      ln_2_(register_module("ln_2", layer_norm(d_model))),
      mlp_(register_module("mlp", FeedForward(d_model))) {}

torch::Tensor GptBlockImpl::forward(torch::Tensor x) {
  x = x + attn_(ln_1_(x));
  return x + mlp_(ln_2_(x));
}

Gpt::Gpt(const ModelOptions& options)
    : Model("gpt"),
      vocab_size_(detail::size_or(options.vocab_size, 8192, "gpt", "vocab_size")),
      context_(detail::size_or(options.context, 256, "gpt", "context")) {
  const int64_t d_model = detail::size_or(options.d_model, 512, "gpt", "d_model");
  const int64_t num_layers = detail::size_or(options.num_layers, 6, "gpt", "num_layers");
  const int64_t num_heads = detail::size_or(options.num_heads, 8, "gpt", "num_heads");
  TORCH_CHECK_VALUE(d_model % num_heads == 0, "[gpt] d_model is ", d_model, " and num_heads is ",
                    num_heads, "; a number of heads that divides d_model is accepted.");
  wte_ = register_module("wte", torch::nn::Embedding(vocab_size_, d_model));
  wpe_ = register_module("wpe", torch::nn::Embedding(context_, d_model));
  register_module("h", h_);
  for (int64_t i = 0; i < num_layers; ++i) {
    h_->push_back(GptBlock(d_model, num_heads));
  }
  ln_f_ = register_module("ln_f", layer_norm(d_model));
  lm_head_ = register_module("lm_head",
                             Linear(torch::nn::LinearOptions(d_model, vocab_size_).bias(false)));
  init_weights(*this);
}

torch::Tensor Gpt::forward(torch::Tensor input) {
  TORCH_CHECK_VALUE(input.dim() == 2 && input.size(1) >= 1 && input.size(1) <= context_,
                    "[gpt] An input of shape ", input.sizes(), " came; [batch, 1 to ", context_,
                    " tokens] is accepted. Was the model made with a shorter context?");
  TORCH_CHECK_TYPE(input.scalar_type() == torch::kLong || input.scalar_type() == torch::kInt,
                   "[gpt] An input of dtype ", input.scalar_type(),
                   " came; token indices of dtype Long or Int are accepted.");
  torch::Tensor positions_T = torch::arange(input.size(1), input.options().dtype(torch::kLong));
  torch::Tensor x_BTD = wte_(input) + wpe_(positions_T);
  for (const auto& block : *h_) {
    x_BTD = block->as<GptBlock>()->forward(x_BTD);
  }
  return lm_head_(ln_f_(x_BTD));
}

InputSpec Gpt::input_spec() const {
  return {.shape = {context_}, .dtype = torch::kLong, .num_classes = vocab_size_, .is_text = true};
}

}  // namespace torchamp::models
