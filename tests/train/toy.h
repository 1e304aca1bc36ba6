#pragma once
// A data set and a network that train in milliseconds, for the tests of the Trainer.

#include <cmath>
#include <memory>
#include <string>

#include <torch/torch.h>

#include "support/temporary_folder.h"
#include "torchamp/train/data/dataset.h"
#include "torchamp/train/trainer.h"

namespace torchamp::train::toy {

// Tensors of a few numbers: a second thread would only be waited for.
inline const bool kHasOneThread = [] {
  torch::set_num_threads(1);
  return true;
}();

inline constexpr int64_t kFeatures = 8;
inline constexpr int64_t kClasses = 4;

/// Example i: features sin(i * (j + 1)), class i mod 4.
class Data : public Dataset {
 public:
  explicit Data(int64_t size) : size_(size) {
    info_.name = "toy";
    info_.input_shape = {kFeatures};
    info_.num_classes = kClasses;
  }
  int64_t size() const override { return size_; }
  const DatasetInfo& info() const override { return info_; }
  Batch collate(const std::vector<int64_t>& indices) const override {
    const auto count = static_cast<int64_t>(indices.size());
    Batch batch{torch::empty({count, kFeatures}), torch::empty({count}, torch::kLong)};
    for (int64_t row = 0; row < count; ++row) {
      const int64_t index = indices[static_cast<size_t>(row)];
      for (int64_t j = 0; j < kFeatures; ++j) {
        batch.input.data_ptr<float>()[row * kFeatures + j] =
            static_cast<float>(std::sin(static_cast<double>(index * (j + 1))));
      }
      batch.target.data_ptr<int64_t>()[row] = index % kClasses;
    }
    return batch;
  }

 private:
  int64_t size_;
  DatasetInfo info_;
};

/// Linear, BatchNorm, ReLU, Dropout, Linear: weights, buffers and random numbers, all of which a
/// resume must bring back.
struct NetImpl : torch::nn::Module {
  NetImpl()
      : fc1(register_module("fc1", torch::nn::Linear(kFeatures, 16))),
        bn(register_module("bn", torch::nn::BatchNorm1d(16))),
        dropout(register_module("dropout", torch::nn::Dropout(0.25))),
        fc2(register_module("fc2", torch::nn::Linear(16, kClasses))) {}
  torch::Tensor forward(const torch::Tensor& input) {
    return fc2(dropout(torch::relu(bn(fc1(input)))));
  }
  torch::nn::Linear fc1;
  torch::nn::BatchNorm1d bn;
  torch::nn::Dropout dropout;
  torch::nn::Linear fc2;
};
TORCH_MODULE(Net);

inline DatasetPair data(int64_t num_train, int64_t num_validation = 0) {
  DatasetPair pair;
  pair.train = std::make_shared<Data>(num_train);
  if (num_validation > 0) pair.validation = std::make_shared<Data>(num_validation);
  return pair;
}

inline TrainerParts parts(const Net& net, DatasetPair pair) {
  TrainerParts made;
  made.module = net.ptr();
  made.forward = [module = net.ptr()](const torch::Tensor& input) {
    return module->forward(input);
  };
  made.data = std::move(pair);
  return made;
}

inline Net make_net(uint64_t seed) {
  torch::manual_seed(seed);
  return Net();
}

/// What `f` throws as an `Error`, or a text that no test expects.
template <typename Error, typename F>
std::string message_of(F&& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "(no error)";
}

}  // namespace torchamp::train::toy
