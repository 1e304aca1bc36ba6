#include "survey/cases.h"

#include <array>
#include <memory>
#include <optional>

namespace torchamp::bench {
namespace {

using torch::Tensor;

Tensor random(at::IntArrayRef sizes) { return torch::randn(sizes); }
Tensor transposed(int64_t rows, int64_t columns) { return torch::randn({columns, rows}).t(); }
std::string by(std::initializer_list<int64_t> sizes) {
  std::string text;
  for (const int64_t size : sizes) text += (text.empty() ? "" : "x") + std::to_string(size);
  return text;
}

void add_products(std::vector<Case>& cases) {
  const auto mm = [](const Tensors& x) { return torch::mm(x[0], x[1]); };
  const std::array<int64_t, 3> products[] = {
      {4, 8, 8},       {16, 64, 64},     {1, 512, 512},  {8, 512, 512},    {64, 64, 64},
      {32, 256, 1024}, {128, 512, 512},  {512, 512, 16}, {16, 4096, 16},   {4096, 16, 16},
      {4096, 64, 64},  {1024, 8, 1024},  {64, 1024, 10}, {256, 1024, 10},  {256, 1024, 1024},
      {1, 1024, 4096}, {512, 512, 2048}, {33, 127, 65},  {1000, 100, 300}, {1024, 1024, 1024}};
  for (const auto& [m, k, n] : products) {
    cases.push_back({"mm", "mm " + by({m, k, n}), mm, {random({m, k}), random({k, n})}});
    cases.push_back({"mm", "mm " + by({m, k, n}) + " tn", mm, {transposed(m, k), random({k, n})}});
    cases.push_back({"mm",
                     "linear " + by({m, k, n}),
                     [](const Tensors& x) { return torch::linear(x[0], x[1], x[2]); },
                     {random({m, k}), random({n, k}), random({n})}});
  }
  const std::array<int64_t, 4> batches[] = {{32, 16, 16, 16}, {8, 64, 64, 64},  {64, 32, 64, 32},
                                            {96, 8, 64, 64},  {16, 1, 64, 256}, {8, 256, 64, 256},
                                            {8, 256, 256, 64}};
  for (const auto& [b, m, k, n] : batches) {
    cases.push_back({"bmm",
                     "bmm " + by({b, m, k, n}),
                     [](const Tensors& x) { return torch::bmm(x[0], x[1]); },
                     {random({b, m, k}), random({b, k, n})}});
    cases.push_back({"bmm",
                     "bmm " + by({b, m, k, n}) + " nt",
                     [](const Tensors& x) { return torch::bmm(x[0], x[1].transpose(1, 2)); },
                     {random({b, m, k}), random({b, n, k})}});
  }
}

struct Conv {
  std::string what;
  std::vector<int64_t> image;  // channels, then sizes
  int64_t out;
  int64_t kernel;
  int64_t stride = 1;
  int64_t groups = 1;
  int64_t dilation = 1;
  bool is_transposed = false;
  std::optional<int64_t> padding = std::nullopt;  // half the kernel
  int64_t output_padding = 0;
};

void add_convolution(std::vector<Case>& cases, const std::string& group, const Conv& conv,
                     int64_t batch, bool last) {
  const auto dims = static_cast<int64_t>(conv.image.size()) - 1;
  std::vector<int64_t> input_sizes = conv.image,
                       weight_sizes = {conv.out, conv.image[0] / conv.groups};
  if (conv.is_transposed) weight_sizes = {conv.image[0], conv.out / conv.groups};
  input_sizes.insert(input_sizes.begin(), batch);
  weight_sizes.insert(weight_sizes.end(), dims, conv.kernel);
  Tensor input = random(input_sizes), weight = random(weight_sizes) * 0.05;
  if (last) {
    input = input.contiguous(at::MemoryFormat::ChannelsLast);
    weight = weight.contiguous(at::MemoryFormat::ChannelsLast);
  }
  const std::vector<int64_t> stride(dims, conv.stride), dilation(dims, conv.dilation),
      padding(dims, conv.padding.value_or(conv.dilation * (conv.kernel - 1) / 2)),
      output_padding(dims, conv.output_padding);
  std::string name = conv.what + " " + by({batch}) + "x" + by({conv.image[0]});
  for (int64_t i = 1; i <= dims; ++i) name += "x" + by({conv.image[i]});
  name += " to " + by({conv.out});
  cases.push_back({group + (last ? " channels_last" : " contiguous"),
                   name,
                   [=, transposed = conv.is_transposed, groups = conv.groups](const Tensors& x) {
                     return torch::convolution(x[0], x[1], x[2], stride, padding, dilation,
                                               transposed, output_padding, groups);
                   },
                   {input, weight, random({conv.out})}});
}

void add_convolutions(std::vector<Case>& cases) {
  const Conv images[] = {{"1x1", {64, 28, 28}, 64, 1},
                         {"1x1", {256, 8, 8}, 64, 1},
                         {"3x3", {3, 32, 32}, 32, 3},
                         {"3x3", {16, 32, 32}, 16, 3},
                         {"3x3", {64, 14, 14}, 64, 3},
                         {"3x3", {128, 8, 8}, 128, 3},
                         {"3x3", {256, 4, 4}, 256, 3},
                         {"3x3 by 2", {32, 32, 32}, 64, 3, 2},
                         {"5x5", {16, 14, 14}, 32, 5},
                         {"7x7", {3, 32, 32}, 32, 7},
                         {"7x7 by 2", {3, 64, 64}, 32, 7, 2},
                         {"3x3, 4 groups", {32, 16, 16}, 32, 3, 1, 4},
                         {"3x3 depthwise", {64, 16, 16}, 64, 3, 1, 64},
                         {"5x5 depthwise", {32, 14, 14}, 32, 5, 1, 32},
                         {"3x3 dilated", {32, 16, 16}, 32, 3, 1, 1, 2},
                         {"4x4 transposed", {64, 8, 8}, 32, 4, 2, 1, 1, true},
                         {"3x3 transposed", {16, 16, 16}, 16, 3, 2, 1, 1, true}};
  for (const bool last : {false, true}) {
    for (const Conv& conv : images) {
      for (const int64_t batch : {1, 2, 16})
        add_convolution(cases, "convolution", conv, batch, last);
    }
    add_convolution(cases, "convolution", {"3x3", {16, 28, 28}, 32, 3}, 64, last);
    add_convolution(cases, "convolution", {"3x3", {64, 64, 64}, 64, 3}, 2, last);
  }
  add_convolution(cases, "convolution", {"1-D 3", {32, 128}, 64, 3}, 4, false);
  add_convolution(cases, "convolution", {"1-D 9", {16, 512}, 16, 9}, 16, false);
  add_convolution(cases, "convolution", {"1-D 4 transposed", {32, 64}, 32, 4, 2, 1, 1, true}, 4,
                  false);
  add_convolution(cases, "convolution", {"3-D 3", {8, 8, 16, 16}, 16, 3}, 2, false);
  add_convolution(cases, "convolution", {"3-D 1", {16, 8, 8, 8}, 16, 1}, 4, false);
}

// The generator and the discriminator of CycleGAN for images of 32x32 (Zhu et al. 2017, sec. 7.2),
// behind their reflection paddings.
void add_cyclegan(std::vector<Case>& cases) {
  const Conv layers[] = {{"7x7 padded", {3, 38, 38}, 64, 7, 1, 1, 1, false, 0},
                         {"3x3 by 2", {64, 32, 32}, 128, 3, 2},
                         {"3x3 by 2", {128, 16, 16}, 256, 3, 2},
                         {"3x3 padded", {256, 10, 10}, 256, 3, 1, 1, 1, false, 0},
                         {"3x3 by 2 transposed", {256, 8, 8}, 128, 3, 2, 1, 1, true, 1, 1},
                         {"3x3 by 2 transposed", {128, 16, 16}, 64, 3, 2, 1, 1, true, 1, 1},
                         {"7x7 padded", {64, 38, 38}, 3, 7, 1, 1, 1, false, 0},
                         {"4x4 by 2", {3, 32, 32}, 64, 4, 2},
                         {"4x4 by 2", {64, 16, 16}, 128, 4, 2},
                         {"4x4 by 2", {128, 8, 8}, 256, 4, 2},
                         {"4x4", {256, 4, 4}, 512, 4},
                         {"4x4", {512, 3, 3}, 1, 4}};
  for (const bool last : {false, true}) {
    for (const Conv& layer : layers) add_convolution(cases, "cyclegan", layer, 2, last);
  }
}

void add_attention(std::vector<Case>& cases) {
  const std::array<int64_t, 4> shapes[] = {
      {2, 4, 16, 32}, {8, 8, 64, 64}, {1, 12, 256, 64}, {4, 2, 128, 16}, {2, 8, 512, 64}};
  for (const auto& [b, h, t, d] : shapes) {
    for (const bool causal : {false, true}) {
      cases.push_back({"attention",
                       by({b, h, t, d}) + (causal ? " causal" : ""),
                       [causal](const Tensors& x) {
                         return torch::scaled_dot_product_attention(x[0], x[1], x[2], {}, 0.0,
                                                                    causal);
                       },
                       {random({b, h, t, d}), random({b, h, t, d}), random({b, h, t, d})}});
    }
  }
}

// Weights are inputs too, so that they change dtype with the rest.
template <class Layer>
void add_recurrent(std::vector<Case>& cases, const std::string& name, Layer layer, int64_t steps,
                   int64_t batch, int64_t size, int64_t hidden,
                   std::function<Tensor(const Tensors&, const Tensors&)> function) {
  Tensors inputs = {random({steps, batch, size})};
  for (const Tensor& parameter : layer->parameters()) inputs.push_back(parameter.detach());
  cases.push_back({"recurrent", name + " " + by({steps, batch, size, hidden}),
                   [=](const Tensors& x) {
                     const Tensor state = torch::zeros({1, batch, hidden}, x[0].options());
                     return function(x, {state});
                   },
                   inputs});
}

void add_recurrent(std::vector<Case>& cases) {
  using namespace torch::nn;
  const std::array<int64_t, 4> shapes[] = {{16, 8, 32, 64}, {32, 32, 128, 256}, {8, 1, 64, 64}};
  for (const auto& [t, b, i, h] : shapes) {
    add_recurrent(cases, "LSTM", LSTM(LSTMOptions(i, h)), t, b, i, h,
                  [](const Tensors& x, const Tensors& s) {
                    return std::get<0>(torch::lstm(x[0], {s[0], s[0]}, {x[1], x[2], x[3], x[4]},
                                                   true, 1, 0.0, true, false, false));
                  });
    add_recurrent(
        cases, "GRU", GRU(GRUOptions(i, h)), t, b, i, h, [](const Tensors& x, const Tensors& s) {
          return std::get<0>(
              torch::gru(x[0], s[0], {x[1], x[2], x[3], x[4]}, true, 1, 0.0, true, false, false));
        });
    add_recurrent(cases, "RNN", RNN(RNNOptions(i, h)), t, b, i, h,
                  [](const Tensors& x, const Tensors& s) {
                    return std::get<0>(torch::rnn_tanh(x[0], s[0], {x[1], x[2], x[3], x[4]}, true,
                                                       1, 0.0, true, false, false));
                  });
    add_recurrent(
        cases, "LSTM cell", LSTMCell(i, h), 1, b, i, h, [](const Tensors& x, const Tensors& s) {
          return std::get<0>(torch::lstm_cell(x[0][0], {s[0][0], s[0][0]}, x[1], x[2], x[3], x[4]));
        });
  }
}

}  // namespace

std::vector<Case> survey_cases() {
  torch::manual_seed(1);
  std::vector<Case> cases;
  add_products(cases);
  add_convolutions(cases);
  add_cyclegan(cases);
  add_attention(cases);
  add_recurrent(cases);
  return cases;
}

}  // namespace torchamp::bench
