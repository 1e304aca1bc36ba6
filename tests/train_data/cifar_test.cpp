// CIFAR-10 in its binary version, made by hand.

#include <array>

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "torchamp/base/error.h"
#include "torchamp/train/data/dataset.h"
#include "train_data/files.h"

namespace torchamp::train {
namespace {

using testing::expect_error;
using testing::ScratchFolder;

// Byte p of the picture is (first + p * 7) mod 256.
std::string record(int label, int first) {
  std::string bytes(1, static_cast<char>(label));
  for (int p = 0; p < 3072; ++p) bytes += static_cast<char>(first + p * 7);
  return bytes;
}

class CifarTest : public ::testing::Test {
 protected:
  void SetUp() override { write(""); }
  // Batch i holds i records with labels i; the test set two with label 9.
  void write(const std::string& inner) const {
    for (int i = 1; i <= 5; ++i) {
      std::string bytes;
      for (int r = 0; r < i; ++r) bytes += record(i, 10 * i + r);
      folder.write(inner + "data_batch_" + std::to_string(i) + ".bin", bytes);
    }
    folder.write(inner + "test_batch.bin", record(9, 0) + record(9, 1));
  }
  DatasetPair open(int64_t limit = 0) const {
    return open_dataset({.name = "cifar10", .path = folder.path(), .limit = limit});
  }

  ScratchFolder folder;
};

TEST_F(CifarTest, GivesNormalisedPlanesOfAllFiveBatchesInOrder) {
  const DatasetPair pair = open();
  ASSERT_EQ(pair.train->size(), 15);
  ASSERT_EQ(pair.validation->size(), 2);
  EXPECT_EQ(pair.train->info().input_shape, (std::vector<int64_t>{3, 32, 32}));
  EXPECT_EQ(pair.train->info().num_classes, 10);
  const Batch batch = pair.train->collate({0, 2, 14});  // batch 1 first, 2 second, 5 fifth
  EXPECT_TRUE(torch::equal(batch.target, torch::tensor({1, 2, 5}, torch::kLong)));
  const std::array<double, 3> mean = {0.4914, 0.4822, 0.4465};
  const std::array<double, 3> std = {0.2470, 0.2435, 0.2616};
  const std::array<int, 3> first = {10, 21, 54};
  ASSERT_EQ(batch.input.sizes(), (std::vector<int64_t>{3, 3, 32, 32}));
  const float* value = batch.input.const_data_ptr<float>();
  for (size_t i = 0; i < 3; ++i) {
    for (int p = 0; p < 3072; ++p) {
      const auto channel = static_cast<size_t>(p / 1024);
      const double pixel = (first[i] + p * 7) % 256;
      ASSERT_EQ(*value++, static_cast<float>((pixel / 255.0 - mean[channel]) / std[channel]));
    }
  }
  EXPECT_EQ(open(4).train->size(), 4);
}

TEST_F(CifarTest, FindsTheFolderThatTheArchiveUnpacksTo) {
  const torch::Tensor expected = open().train->collate({3}).input;
  for (const char* name : {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin",
                           "data_batch_4.bin", "data_batch_5.bin", "test_batch.bin"}) {
    folder.remove(name);
  }
  write("cifar-10-batches-bin/");
  EXPECT_TRUE(torch::equal(open().train->collate({3}).input, expected));
}

TEST_F(CifarTest, ATruncatedFileNamesItsEnd) {
  for (const size_t size : {size_t{0}, size_t{1}, size_t{3072}, size_t{3074}, size_t{6145}}) {
    folder.write("data_batch_2.bin", (record(2, 1) + record(2, 1)).substr(0, size));
    expect_error<base::DataError>(
        [&] { open(); }, {folder.path("data_batch_2.bin"), "at byte " + std::to_string(size),
                          "byte " + std::to_string((size / 3073 + 1) * 3073), "3073"});
  }
}

TEST_F(CifarTest, ALabelOutOfRangeNamesItsByte) {
  folder.write("test_batch.bin", record(9, 0) + record(10, 0));
  expect_error<base::DataError>([&] { open(); },
                                {folder.path("test_batch.bin"), "label 10 at byte 3073", "0 to 9"});
}

TEST_F(CifarTest, AMissingBatchIsNamed) {
  folder.remove("data_batch_4.bin");
  expect_error<base::DataError>([&] { open(); },
                                {folder.path("data_batch_4.bin"), "does not exist"});
  expect_error<base::UsageError>([] { open_dataset({.name = "cifar10"}); }, {"cifar10", "path"});
}

}  // namespace
}  // namespace torchamp::train
