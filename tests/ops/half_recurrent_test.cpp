// A language model of recurrent layers in float16: trains with a GradScaler as it does in float32.

#include <chrono>
#include <cmath>

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "ops/half_check.h"
#include "torchamp/amp/autocast.h"
#include "torchamp/amp/grad_scaler.h"
#include "torchamp/ops/install.h"
#include "torchamp/optim/adamw.h"
#include "torchamp/optim/low_precision.h"

namespace torchamp::testing {
namespace {

using torch::Tensor;

constexpr int64_t kWords = 50, kWidth = 48, kLength = 24, kBatch = 8;

enum class Kind { kLstm, kGru, kRnn, kLstmCells };

// Embedding, two recurrent layers, a layer to the words; dropout between.
struct LanguageModel : torch::nn::Module {
  explicit LanguageModel(Kind kind) : kind(kind) {
    const auto options = [](auto layer_options) {
      return layer_options.num_layers(2).dropout(0.1).batch_first(true);
    };
    if (kind == Kind::kLstm) {
      lstm =
          register_module("lstm", torch::nn::LSTM(options(torch::nn::LSTMOptions(kWidth, kWidth))));
    } else if (kind == Kind::kGru) {
      gru = register_module("gru", torch::nn::GRU(options(torch::nn::GRUOptions(kWidth, kWidth))));
    } else if (kind == Kind::kRnn) {
      rnn = register_module("rnn", torch::nn::RNN(options(torch::nn::RNNOptions(kWidth, kWidth))));
    } else {
      first = register_module("first", torch::nn::LSTMCell(kWidth, kWidth));
      second = register_module("second", torch::nn::LSTMCell(kWidth, kWidth));
    }
  }

  Tensor forward(const Tensor& words) {
    const Tensor x = embedding->forward(words);
    return head->forward(dropout->forward(recur(x)));
  }

  Tensor recur(const Tensor& x) {
    if (kind == Kind::kLstm) return std::get<0>(lstm->forward(x));
    if (kind == Kind::kGru) return std::get<0>(gru->forward(x));
    if (kind == Kind::kRnn) return std::get<0>(rnn->forward(x));
    using State = std::optional<std::tuple<Tensor, Tensor>>;
    State low, high;
    Tensors outputs;
    for (int64_t t = 0; t < x.size(1); ++t) {
      low = first->forward(x.select(1, t), low);
      high = second->forward(std::get<0>(*low), high);
      outputs.push_back(std::get<0>(*high));
    }
    return torch::stack(outputs, 1);
  }

  Kind kind;
  torch::nn::Embedding embedding =
      register_module("embedding", torch::nn::Embedding(kWords, kWidth));
  torch::nn::LSTM lstm = nullptr;
  torch::nn::GRU gru = nullptr;
  torch::nn::RNN rnn = nullptr;
  torch::nn::LSTMCell first = nullptr, second = nullptr;
  torch::nn::Dropout dropout = register_module("dropout", torch::nn::Dropout(0.1));
  torch::nn::Linear head = register_module("head", torch::nn::Linear(kWidth, kWords));
};

enum class Way { kFloat32, kAutocast, kHalfWeights, kAllHalf };

struct Curve {
  double first = 0, last = 0;
  int skipped = 0;
  bool grads_are_finite = true;
};

// A text of repeated phrases, which can be learnt.
Tensor text() {
  torch::manual_seed(3);
  const Tensor phrase = torch::randint(0, kWords, {kBatch, 6});
  return phrase.repeat({1, (kLength + 1 + 5) / 6}).narrow(1, 0, kLength + 1);
}

Curve train(Kind kind, Way way) {
  constexpr int kSteps = 60;
  torch::manual_seed(5);
  LanguageModel model(kind);
  if (way == Way::kHalfWeights) optim::to_low_precision(model, torch::kHalf);
  if (way == Way::kAllHalf) model.to(torch::kHalf);
  optim::AdamW optimizer(model.parameters(), torch::optim::AdamWOptions(1e-2));
  amp::GradScaler scaler({.device = c10::kCPU, .enabled = way != Way::kFloat32});
  const Tensor words = text();
  const bool casts = way == Way::kAutocast || way == Way::kHalfWeights;
  Curve curve;
  for (int step = 0; step < kSteps; ++step) {
    Tensor loss;
    {
      const amp::Autocast autocast(c10::kCPU, torch::kHalf, {.enabled = casts});
      const Tensor scores = model.forward(words.narrow(1, 0, kLength));
      loss = torch::cross_entropy_loss(scores.flatten(0, 1).to(torch::kFloat),
                                       words.narrow(1, 1, kLength).flatten());
    }
    scaler.scale(loss).backward();
    scaler.unscale_(optimizer);
    bool is_finite = true;
    for (const Tensor& parameter : model.parameters()) {
      is_finite = is_finite && parameter.grad().isfinite().all().item<bool>();
    }
    const bool skipped = scaler.step(optimizer).skipped();
    curve.skipped += skipped ? 1 : 0;
    curve.grads_are_finite = curve.grads_are_finite && is_finite == !skipped;
    scaler.update();
    optimizer.zero_grad();
    if (step == 0) curve.first = loss.item<double>();
    curve.last = loss.item<double>();
  }
  return curve;
}

void expect_alike(Kind kind, Way way, const char* what) {
  const Curve single = train(kind, Way::kFloat32), half = train(kind, way);
  EXPECT_NEAR(half.first, single.first, 0.02) << what;
  EXPECT_LE(half.skipped, 2) << what;
  EXPECT_TRUE(half.grads_are_finite) << what << ": but for the skipped steps";
  EXPECT_LT(single.last, 0.5 * single.first) << what;
  EXPECT_NEAR(half.last, single.last, 0.08 * single.first) << what;
}

class HalfRecurrent : public ::testing::Test {
 protected:
  HalfRecurrent() {
    setenv("TORCHAMP_OPS", "all", 1);
    installation_.emplace();
    at::set_num_threads(1);  // small models
  }
  ~HalfRecurrent() override { unsetenv("TORCHAMP_OPS"); }
  std::optional<ops::Installation> installation_;
};

TEST_F(HalfRecurrent, AnLstmLanguageModelTrainsAsInFloat32) {
  expect_alike(Kind::kLstm, Way::kAutocast, "autocast");
  expect_alike(Kind::kLstm, Way::kHalfWeights, "16-bit weights");
  expect_alike(Kind::kLstm, Way::kAllHalf, "a model of float16");
}

TEST_F(HalfRecurrent, OneOfLstmCellsToo) {
  expect_alike(Kind::kLstmCells, Way::kAutocast, "autocast");
  expect_alike(Kind::kLstmCells, Way::kHalfWeights, "16-bit weights");
}

TEST_F(HalfRecurrent, OneOfGrusToo) {
  expect_alike(Kind::kGru, Way::kAutocast, "autocast");
  expect_alike(Kind::kGru, Way::kHalfWeights, "16-bit weights");
  expect_alike(Kind::kGru, Way::kAllHalf, "a model of float16");
}

TEST_F(HalfRecurrent, OneOfRnnsToo) {
  expect_alike(Kind::kRnn, Way::kAutocast, "autocast");
  expect_alike(Kind::kRnn, Way::kAllHalf, "a model of float16");
}

// The layer as a whole is computed in float32 and rounded once, where LibTorch rounds the state at
// each step.
TEST_F(HalfRecurrent, LayersRoundOnce) {
  torch::manual_seed(9);
  torch::nn::LSTM lstm(torch::nn::LSTMOptions(12, 16).num_layers(2).bidirectional(true));
  torch::nn::GRU gru(torch::nn::GRUOptions(12, 16).num_layers(2).bidirectional(true));
  torch::nn::RNN relu(torch::nn::RNNOptions(12, 16).nonlinearity(torch::kReLU));
  const auto check = [](auto& layer, const char* name) {
    layer->to(torch::kHalf);  // the weights are numbers of float16 in each dtype
    check_op(name,
             [&](const Tensors& x) {
               layer->to(x[0].scalar_type());
               return std::get<0>(layer->forward(x[0]));
             },
             {half({9, 4, 12})});
    layer->to(torch::kHalf);
    const auto packed = [&](const Tensors& x) {
      layer->to(x[0].scalar_type());
      const auto sequence = torch::nn::utils::rnn::pack_padded_sequence(
          x[0], torch::tensor({9, 7, 7, 2}, torch::kLong));
      return std::get<0>(layer->forward_with_packed_input(sequence)).data();
    };
    check_op(std::string(name) + ", packed", packed, {half({9, 4, 12})});
  };
  check(lstm, "LSTM");
  check(gru, "GRU");
  check(relu, "RNN");
}

TEST_F(HalfRecurrent, GradientsOfWeightsAreRoundedOnceToo) {
  torch::manual_seed(9);
  torch::nn::GRU gru(torch::nn::GRUOptions(12, 16));
  gru->to(torch::kHalf);
  const Tensor x = half({9, 4, 12});
  const auto grads = [&](torch::ScalarType dtype) {
    gru->to(dtype);
    gru->zero_grad();
    std::get<0>(gru->forward(x.to(dtype))).sum().backward();
    Tensors results;
    for (const Tensor& parameter : gru->parameters()) results.push_back(parameter.grad().clone());
    return results;
  };
  const Tensors of_half = grads(torch::kHalf), single = grads(torch::kFloat),
                exact = grads(torch::kDouble);
  for (size_t i = 0; i < exact.size(); ++i) {
    expect_one_rounding(of_half[i], single[i], exact[i], 0, "gradient " + std::to_string(i));
  }
}

TEST_F(HalfRecurrent, DoubleBackwardOfAGruFollowsFloat32) {
  torch::manual_seed(9);
  torch::nn::GRU gru(torch::nn::GRUOptions(6, 5));
  gru->to(torch::kHalf);
  const Tensor input = half({4, 3, 6});
  const auto second = [&](torch::ScalarType dtype) {
    gru->to(dtype);
    const Tensor x = input.to(dtype).detach().requires_grad_();
    const Tensor y = std::get<0>(gru->forward(x));
    const Tensor first = torch::autograd::grad({y.pow(2).sum()}, {x}, {}, true, true)[0];
    return torch::autograd::grad({first.pow(2).sum()}, {x})[0].to(torch::kDouble);
  };
  const Tensor half_second = second(torch::kHalf), exact = second(torch::kDouble);
  EXPECT_LE((half_second - exact).norm().item<double>(), 0.005 * exact.norm().item<double>());
}

TEST_F(HalfRecurrent, WithoutGradientsAndInInferenceModeTheSame) {
  torch::nn::LSTM lstm(torch::nn::LSTMOptions(12, 16));
  lstm->to(torch::kHalf);
  const Tensor x = half({9, 4, 12});
  const Tensor with_graph = std::get<0>(lstm->forward(x)).detach();
  {
    const torch::NoGradGuard no_grad;
    EXPECT_TRUE(torch::equal(std::get<0>(lstm->forward(x)), with_graph));
  }
  const torch::InferenceMode inference;
  EXPECT_TRUE(torch::equal(std::get<0>(lstm->forward(x)), with_graph));
}

}  // namespace
}  // namespace torchamp::testing
