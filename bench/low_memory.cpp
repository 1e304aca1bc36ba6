// What moments in bfloat16 and in 8 bits, and weights in bfloat16 alone, cost in the loss: the cnn
// on Fashion-MNIST and a small gpt on made-up tokens, 2,000 steps of AdamW under bf16 autocast,
// three seeds each. Prints the mean loss of the last 200 steps beside that of float32 states, and
// the bytes of weights and states.
//
//   low_memory FOLDER_OF_FASHION_MNIST [steps] [seeds]

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "models/model.h"
#include "torchamp/torchamp.h"
#include "torchamp/train/data/dataset.h"
#include "torchamp/train/data/loader.h"

namespace {

using torchamp::optim::AdamW;
using torchamp::optim::AdamWOptions;
using torchamp::optim::FusedOptions;
using torchamp::optim::LowPrecisionWeights;
using torchamp::optim::Moments;

struct Mode {
  const char* name;
  Moments moments;
  bool bf16_weights;  // alone, rounded by chance
};
constexpr Mode kModes[] = {{"float32 states", Moments::kFloat32, false},
                           {"bf16 moments", Moments::kBFloat16, false},
                           {"8-bit moments", Moments::k8Bit, false},
                           {"bf16 weights", Moments::kFloat32, true},
                           {"bf16 weights, 8-bit moments", Moments::k8Bit, true}};

struct Work {
  std::string model;
  torchamp::models::ModelOptions options;
  torchamp::train::DataOptions data;
  int64_t batch;
  double lr;
};

struct Outcome {
  double loss = 0.0;
  int64_t bytes = 0;
};

int64_t bytes_of(const at::Tensor& tensor) {
  return tensor.defined() ? static_cast<int64_t>(tensor.nbytes()) : 0;
}

Outcome train(const Work& work, const torchamp::train::DatasetPair& data, const Mode& mode,
              int64_t steps, uint64_t seed) {
  torch::manual_seed(static_cast<int64_t>(seed));
  const auto model = torchamp::models::make_model(work.model, work.options);
  if (mode.bf16_weights) {
    for (at::Tensor& parameter : model->parameters()) {
      if (parameter.dim() > 1) parameter.set_data(parameter.to(torch::kBFloat16));
    }
  }
  FusedOptions fused;
  fused.moments = mode.moments;
  fused.seed = seed;
  if (mode.bf16_weights) fused.low_precision_weights = LowPrecisionWeights::kStochastic;
  AdamW optimizer(model->parameters(), AdamWOptions(work.lr), fused);

  Outcome outcome;
  int64_t epoch = 0, step = 0, counted = 0;
  while (step < steps) {
    torchamp::train::BatchStream stream(data.train, {.batch_size = work.batch,
                                                     .shuffle = true,
                                                     .seed = seed,
                                                     .epoch = epoch++,
                                                     .drop_last = true});
    while (step < steps) {
      const auto batch = stream.next();
      if (!batch) break;
      optimizer.zero_grad();
      at::Tensor loss;
      {
        const torchamp::Autocast region(torch::kCPU, torch::kBFloat16);
        loss = torch::cross_entropy_loss(model->forward(batch->input).flatten(0, -2),
                                         batch->target.flatten());
      }
      loss.backward();
      optimizer.step();
      if (++step > steps - 200) {
        outcome.loss += loss.item<double>();
        ++counted;
      }
    }
  }
  outcome.loss /= static_cast<double>(counted);
  for (const at::Tensor& parameter : model->parameters()) outcome.bytes += bytes_of(parameter);
  for (const auto& [key, state] : optimizer.state()) {
    const auto& adam = static_cast<const torch::optim::AdamWParamState&>(*state);
    const int64_t moments = bytes_of(adam.exp_avg()) + bytes_of(adam.exp_avg_sq());
    outcome.bytes += moments + (mode.moments == Moments::k8Bit ? moments / 64 : 0);  // the scales
  }
  return outcome;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::printf("usage: low_memory FOLDER_OF_FASHION_MNIST [steps] [seeds]\n");
    return 2;
  }
  const int64_t steps = argc > 2 ? std::atoll(argv[2]) : 2000;
  const int64_t seeds = argc > 3 ? std::atoll(argv[3]) : 3;
  Work cnn{"cnn", {}, {}, 64, 1e-3};
  cnn.data.name = "fashion-mnist";
  cnn.data.path = argv[1];
  Work gpt{"gpt",
           {.vocab_size = 256, .context = 32, .d_model = 64, .num_layers = 2, .num_heads = 4},
           {},
           16,
           1e-3};
  gpt.data.name = "synthetic";
  gpt.data.context = 32;
  gpt.data.vocab_size = 256;
  gpt.data.synthetic.tokens = true;
  gpt.data.synthetic.num_train = 20000;
  std::printf("%-5s %-28s %12s %10s %12s\n", "model", "mode", "final loss", "vs fp32", "bytes");
  for (const Work& work : {cnn, gpt}) {
    const auto data = torchamp::train::open_dataset(work.data);
    double reference = 0.0;
    for (const Mode& mode : kModes) {
      Outcome mean;
      for (int64_t seed = 0; seed < seeds; ++seed) {
        const Outcome one = train(work, data, mode, steps, static_cast<uint64_t>(seed));
        mean.loss += one.loss / static_cast<double>(seeds);
        mean.bytes = one.bytes;
      }
      if (reference == 0.0) reference = mean.loss;
      std::printf("%-5s %-28s %12.5f %9.2f%% %12lld\n", work.model.c_str(), mode.name, mean.loss,
                  100.0 * (mean.loss / reference - 1.0), static_cast<long long>(mean.bytes));
      std::fflush(stdout);
    }
  }
  return 0;
}
