#pragma once
// The interface of the models that cli, bench, tests and examples share, and the list of their
// names. Each model has its own header; training them is not here.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <torch/torch.h>

namespace torchamp::models {

/// What one example looks like: enough to make synthetic data of the right kind.
struct InputSpec {
  std::vector<int64_t> shape = {};       ///< without the batch; {T} for text
  at::ScalarType dtype = torch::kFloat;  ///< kLong: token indices in [0, num_classes)
  int64_t num_classes = 0;               ///< size of the last dimension of the logits
  bool is_image = false;                 ///< 4-D activations, so channels_last is meaningful
  bool is_text = false;                  ///< one target a token instead of one an example
};

/// A network from a batch to logits: [B, num_classes], or [B, T, vocab_size] for text.
struct Model : torch::nn::Module {
  using torch::nn::Module::Module;

  /// Returns the logits of `input`, whose shape is [B] + input_spec().shape.
  ///
  /// Errors:  c10::Error, one sentence, when the shape or the dtype of `input` does not fit.
  virtual torch::Tensor forward(torch::Tensor input) = 0;

  /// The input this model was made for; an image model takes other heights and widths as well.
  virtual InputSpec input_spec() const = 0;
};

/// Sizes of a model; 0 (or empty) takes the model's default. A model ignores the fields of others.
struct ModelOptions {
  int64_t num_classes = 0;           ///< mlp, cnn 10; resnet18 1000
  std::vector<int64_t> hidden = {};  ///< mlp: widths of the hidden layers, {4096, 4096}
  int64_t in_features = 0;           ///< mlp 1024
  int64_t in_channels = 0;           ///< cnn 1; resnet18 3
  int64_t image_size = 0;  ///< cnn 28, resnet18 224: height and width that input_spec() tells
  int64_t vocab_size = 0;  ///< gpt 8192
  int64_t context = 0;     ///< gpt 256: the longest sequence
  int64_t d_model = 0;     ///< gpt 512
  int64_t num_layers = 0;  ///< gpt 6
  int64_t num_heads = 0;   ///< gpt 8; must divide d_model
};

/// The names that make_model() knows: mlp, cnn, resnet18, gpt.
const std::vector<std::string>& model_names();

/// Makes the model `name` with fresh weights drawn from LibTorch's default generator.
///
/// Errors:  c10::ValueError for a name that is not in model_names() and for sizes out of range.
std::shared_ptr<Model> make_model(const std::string& name, const ModelOptions& options = {});

/// The options that fit a data set whose examples have `input_shape` and `num_classes` classes;
/// for text the shape is {T} and the classes are the vocabulary.
ModelOptions options_for(const std::vector<int64_t>& input_shape, int64_t num_classes,
                         bool is_text);

/// A fully connected layer that calls at::linear, as Python's nn.Linear does. torch::nn::Linear
/// multiplies by weight.t() for 3-D input, which rounds differently and which autocast's cache of
/// casted weights never sees.
struct LinearImpl : torch::nn::LinearImpl {
  using torch::nn::LinearImpl::LinearImpl;
  torch::Tensor forward(const torch::Tensor& input) { return torch::linear(input, weight, bias); }
};
TORCH_MODULE(Linear);

}  // namespace torchamp::models
