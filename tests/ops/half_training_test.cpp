// Training in float16 with a GradScaler, beside float32 from the same start.

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "models/model.h"
#include "torchamp/amp/autocast.h"
#include "torchamp/amp/grad_scaler.h"
#include "torchamp/ops/install.h"
#include "torchamp/optim/adamw.h"

namespace torchamp::testing {
namespace {

using torch::Tensor;

struct Losses {
  std::vector<double> values;
  int skipped = 0;
};

// Steps over four fixed batches, so that the loss falls towards 0.
Losses train(const std::string& name, const models::ModelOptions& options, const Tensor& input,
             const Tensor& target, int steps, bool in_half) {
  torch::manual_seed(1);
  const auto model = models::make_model(name, options);
  optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-3));
  amp::GradScaler scaler({.device = c10::kCPU, .enabled = in_half});
  Losses losses;
  for (int step = 0; step < steps; ++step) {
    const int64_t batch = input.size(0) / 4, begin = step % 4 * batch;
    Tensor loss;
    {
      const amp::Autocast autocast(c10::kCPU, torch::kHalf, {.enabled = in_half});
      const Tensor output = model->forward(input.narrow(0, begin, batch));
      loss = torch::cross_entropy_loss(output.to(torch::kFloat), target.narrow(0, begin, batch));
    }
    scaler.scale(loss).backward();
    losses.skipped += scaler.step(optimizer).skipped() ? 1 : 0;
    scaler.update();
    optimizer.zero_grad();
    losses.values.push_back(loss.item<double>());
  }
  return losses;
}

// In float16 a step may be skipped while the scale is found, which delays the curve by one; the
// levels that both reach must agree.
void expect_alike(const Losses& half, const Losses& single) {
  const auto mean_of_last_four = [](const Losses& losses) {
    double sum = 0;
    for (size_t i = losses.values.size() - 4; i < losses.values.size(); ++i)
      sum += losses.values[i];
    return sum / 4;
  };
  EXPECT_NEAR(half.values[0], single.values[0], 0.01);  // the same weights
  EXPECT_LE(half.skipped, 2);
  EXPECT_LT(mean_of_last_four(single), 0.25 * single.values[0]);
  EXPECT_NEAR(mean_of_last_four(half), mean_of_last_four(single), 0.05 * single.values[0]);
}

TEST(HalfTraining, OfAnMlpFollowsFloat32) {
  const ops::Installation installation;
  at::set_num_threads(1);  // small models
  torch::manual_seed(2);
  models::ModelOptions options;
  options.in_features = 64;
  options.hidden = {256, 128};
  const Tensor input = torch::randn({128, 64}), target = torch::randint(0, 10, {128});
  expect_alike(train("mlp", options, input, target, 80, true),
               train("mlp", options, input, target, 80, false));
}

TEST(HalfTraining, OfACnnFollowsFloat32) {
  const ops::Installation installation;
  at::set_num_threads(1);  // small models
  torch::manual_seed(2);
  const models::ModelOptions options;
  const Tensor input = torch::randn({32, 1, 28, 28}), target = torch::randint(0, 10, {32});
  expect_alike(train("cnn", options, input, target, 40, true),
               train("cnn", options, input, target, 40, false));
}

}  // namespace
}  // namespace torchamp::testing
