#include "torchamp/train/data/synthetic.h"

#include <cmath>
#include <numeric>

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "torchamp/base/error.h"

namespace torchamp::train {
namespace {

std::vector<int64_t> first(int64_t count) {
  std::vector<int64_t> indices(static_cast<size_t>(count));
  std::iota(indices.begin(), indices.end(), int64_t{0});
  return indices;
}

DatasetPair open(DataOptions options) {
  options.name = "synthetic";
  return open_dataset(options);
}

TEST(Synthetic, GivesContiguousFloatExamplesOfAnyShape) {
  for (const std::vector<int64_t>& shape : std::vector<std::vector<int64_t>>{
           {1024}, {1, 28, 28}, {3, 7, 5}, {2, 3}, {2, 3, 4, 5}, {1}}) {
    const DatasetPair pair = open({.synthetic = {.shape = shape, .num_classes = 6}});
    const Batch batch = pair.train->collate({3, 0, 1023});
    std::vector<int64_t> expected = shape;
    expected.insert(expected.begin(), 3);
    EXPECT_EQ(batch.input.sizes(), torch::IntArrayRef(expected));
    EXPECT_EQ(batch.input.scalar_type(), torch::kFloat);
    EXPECT_TRUE(batch.input.is_contiguous());
    EXPECT_TRUE(torch::isfinite(batch.input).all().item<bool>());
    EXPECT_EQ(batch.target.sizes(), (std::vector<int64_t>{3}));
    EXPECT_EQ(batch.target.scalar_type(), torch::kLong);
    EXPECT_EQ(pair.train->info().input_shape, shape);
    EXPECT_EQ(pair.train->info().num_classes, 6);
    EXPECT_FALSE(pair.train->info().is_text);
  }
}

TEST(Synthetic, DependsOnSeedSplitAndIndexAlone) {
  const DataOptions options{.seed = 11, .synthetic = {.shape = {2, 4, 4}}};
  const DatasetPair one = open(options);
  const DatasetPair same = open(options);
  DataOptions reseeded = options;
  reseeded.seed = 12;
  const torch::Tensor batch = one.train->collate(first(32)).input;
  EXPECT_TRUE(torch::equal(batch, same.train->collate(first(32)).input));
  EXPECT_TRUE(torch::equal(batch[5], same.train->collate({9, 5}).input[1]));
  EXPECT_FALSE(torch::equal(batch, one.validation->collate(first(32)).input));
  EXPECT_FALSE(torch::equal(batch, open(reseeded).train->collate(first(32)).input));
}

// A uniform of variance 1/2 twice: mean 0, variance 1. With 2000 examples of 512 numbers the noise
// averages out; 32 means a class times 10 classes leave a spread of 0.7 / sqrt(320) = 0.04, taken 4
// times.
TEST(Synthetic, HasAboutMeanZeroAndVarianceOneAndAllClasses) {
  const auto data = make_synthetic({.shape = {2, 16, 16}}, 2000, 1, 0);
  const Batch batch = data->collate(first(2000));
  EXPECT_NEAR(batch.input.mean().item<double>(), 0, 0.16);
  EXPECT_NEAR(batch.input.var().item<double>(), 1, 0.16);
  const torch::Tensor counts = torch::bincount(batch.target, {}, 10);
  EXPECT_EQ(counts.numel(), 10);
  EXPECT_NEAR(counts.min().item<double>(), 200, 5 * std::sqrt(200.0));
  EXPECT_NEAR(counts.max().item<double>(), 200, 5 * std::sqrt(200.0));
}

// The nearest class mean of the training split must name unseen examples: that is what learnable
// means.
TEST(Synthetic, ClassMeansOfTrainingClassifyValidation) {
  for (const std::vector<int64_t>& shape : std::vector<std::vector<int64_t>>{{64}, {1, 28, 28}}) {
    const DatasetPair pair = open({.seed = 3, .synthetic = {.shape = shape}});
    const Batch train = pair.train->collate(first(1024));
    const Batch validation = pair.validation->collate(first(256));
    std::vector<torch::Tensor> means;
    for (int64_t label = 0; label < 10; ++label) {
      means.push_back(train.input.flatten(1).index({train.target == label}).mean(0));
    }
    const torch::Tensor guess =
        torch::cdist(validation.input.flatten(1), torch::stack(means)).argmin(1);
    EXPECT_GT((guess == validation.target).to(torch::kDouble).mean().item<double>(), 0.95);
  }
}

TEST(Synthetic, TokensAreShiftedWindowsWithinTheVocabulary) {
  const DatasetPair pair =
      open({.context = 32, .vocab_size = 50, .synthetic = {.tokens = true, .num_train = 400}});
  EXPECT_TRUE(pair.train->info().is_text);
  EXPECT_EQ(pair.train->info().num_classes, 50);
  EXPECT_EQ(pair.train->info().input_shape, (std::vector<int64_t>{32}));
  EXPECT_EQ(pair.train->info().input_dtype, torch::kLong);
  const Batch batch = pair.train->collate(first(400));
  EXPECT_TRUE(torch::equal(batch.input.slice(1, 1), batch.target.slice(1, 0, 31)));
  EXPECT_GE(batch.target.min().item<int64_t>(), 0);
  EXPECT_LT(batch.target.max().item<int64_t>(), 50);
  // Successors: half by rule, and few by chance.
  const double successors =
      (batch.target == (batch.input + 1).remainder(50)).to(torch::kDouble).mean().item<double>();
  EXPECT_GT(successors, 0.45);
  EXPECT_LT(successors, 0.6);
}

TEST(Synthetic, LimitShortensTrainingOnly) {
  const DatasetPair pair =
      open({.limit = 10, .synthetic = {.num_train = 64, .num_validation = 32}});
  EXPECT_EQ(pair.train->size(), 10);
  EXPECT_EQ(pair.validation->size(), 32);
  EXPECT_THROW(pair.train->collate({10}), c10::IndexError);
  EXPECT_THROW(pair.train->collate({-1}), c10::IndexError);
}

TEST(Synthetic, RefusesSizesBelowOne) {
  EXPECT_THROW(open({.synthetic = {.shape = {}}}), base::UsageError);
  EXPECT_THROW(open({.synthetic = {.shape = {3, 0, 2}}}), base::UsageError);
  EXPECT_THROW(open({.synthetic = {.shape = {1 << 20, 1 << 20, 1 << 30}}}), base::UsageError);
  EXPECT_THROW(open({.synthetic = {.num_classes = 0}}), base::UsageError);
  EXPECT_THROW(open({.synthetic = {.num_train = 0}}), base::UsageError);
  EXPECT_THROW(open({.context = 0, .synthetic = {.tokens = true}}), base::UsageError);
  EXPECT_THROW(open({.vocab_size = 1, .synthetic = {.tokens = true}}), base::UsageError);
}

TEST(OpenDataset, NamesWhatItAcceptsWhenTheNameIsUnknown) {
  try {
    open_dataset({.name = "imagenet"});
    FAIL() << "no error";
  } catch (const base::UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("'imagenet'"), std::string::npos);
    for (const std::string& name : dataset_names()) {
      EXPECT_NE(std::string(error.what()).find(name), std::string::npos) << name;
    }
  }
  EXPECT_THROW(open_dataset({.name = "synthetic", .limit = -1}), base::UsageError);
}

}  // namespace
}  // namespace torchamp::train
