// IDX files of MNIST and Fashion-MNIST, made by hand here and the real ones where Debian's package
// is.

#include <array>
#include <chrono>
#include <numeric>

#include <gtest/gtest.h>

#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include "torchamp/base/error.h"
#include "torchamp/train/data/dataset.h"
#include "torchamp/train/data/loader.h"
#include "train_data/files.h"

namespace torchamp::train {
namespace {

using testing::expect_error;
using testing::gzip;
using testing::ScratchFolder;

std::string word(uint32_t value) {
  return {static_cast<char>(value >> 24), static_cast<char>(value >> 16),
          static_cast<char>(value >> 8), static_cast<char>(value)};
}

// Pixel p of picture i is (i * 31 + p) mod 256; label i is i mod 10.
std::string pictures(uint32_t count) {
  std::string bytes = word(0x803) + word(count) + word(28) + word(28);
  for (uint32_t i = 0; i < count; ++i) {
    for (uint32_t p = 0; p < 784; ++p) bytes += static_cast<char>(i * 31 + p);
  }
  return bytes;
}

std::string labels(uint32_t count) {
  std::string bytes = word(0x801) + word(count);
  for (uint32_t i = 0; i < count; ++i) bytes += static_cast<char>(i % 10);
  return bytes;
}

class IdxTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder.write("train-images-idx3-ubyte", pictures(12));
    folder.write("train-labels-idx1-ubyte", labels(12));
    folder.write("t10k-images-idx3-ubyte", pictures(3));
    folder.write("t10k-labels-idx1-ubyte", labels(3));
  }

  DatasetPair open(int64_t limit = 0) const {
    return open_dataset({.name = "mnist", .path = folder.path(), .limit = limit});
  }
  void expect_data_error(const std::vector<std::string>& words) const {
    expect_error<base::DataError>([&] { open(); }, words);
  }

  ScratchFolder folder;
};

TEST_F(IdxTest, GivesNormalisedPicturesAndLabels) {
  const DatasetPair pair = open();
  ASSERT_EQ(pair.train->size(), 12);
  ASSERT_EQ(pair.validation->size(), 3);
  EXPECT_TRUE(pair.state.empty());
  EXPECT_EQ(pair.train->info().name, "mnist");
  EXPECT_EQ(pair.train->info().input_shape, (std::vector<int64_t>{1, 28, 28}));
  EXPECT_EQ(pair.train->info().num_classes, 10);
  const Batch batch = pair.train->collate({11, 2});
  ASSERT_EQ(batch.input.sizes(), (std::vector<int64_t>{2, 1, 28, 28}));
  EXPECT_TRUE(batch.input.is_contiguous());
  EXPECT_EQ(batch.target[0].item<int64_t>(), 1);
  EXPECT_EQ(batch.target[1].item<int64_t>(), 2);
  for (int64_t i = 0; i < 2; ++i) {
    for (int64_t p = 0; p < 784; ++p) {
      const double pixel = static_cast<double>(((i == 0 ? 11 : 2) * 31 + p) % 256);
      EXPECT_EQ(batch.input[i].flatten()[p].item<float>(),
                static_cast<float>((pixel / 255.0 - 0.1307) / 0.3081));
    }
  }
}

TEST_F(IdxTest, BatchesAreFloatWhateverTheAutocastStateOfTheReader) {
  const DatasetPair pair = open();
  const torch::Tensor expected = pair.train->collate({0, 1, 2}).input;
  const bool was_enabled = at::autocast::is_autocast_enabled(at::kCPU);
  at::autocast::set_autocast_enabled(at::kCPU, true);
  for (const int64_t workers : {0, 2}) {
    BatchStream stream(pair.train, {.batch_size = 3, .num_workers = workers});
    EXPECT_TRUE(torch::equal(stream.next()->input, expected)) << workers;
  }
  at::autocast::set_autocast_enabled(at::kCPU, was_enabled);
}

TEST_F(IdxTest, LimitKeepsTheFirstTrainingExamples) {
  EXPECT_EQ(open(5).train->size(), 5);
  EXPECT_EQ(open(5).validation->size(), 3);
  EXPECT_EQ(open(12).train->size(), 12);
  EXPECT_EQ(open(1000).train->size(), 12);
  EXPECT_EQ(open(5).train->collate({4}).target.item<int64_t>(), 4);
  EXPECT_THROW(open(5).train->collate({5}), c10::IndexError);
}

TEST_F(IdxTest, AcceptsTheSpellingsAndCompressionsThatAreAround) {
  const torch::Tensor expected = open().train->collate({0, 5, 11}).input;
  folder.remove("train-images-idx3-ubyte");
  for (const char* name : {"train-images.idx3-ubyte", "train-images-idx3-ubyte.gz",
                           "train-images.idx3-ubyte.gz", "train-images-idx3-ubyte"}) {
    for (const std::string& bytes : {pictures(12), gzip(pictures(12))}) {
      folder.write(name, bytes);
      EXPECT_TRUE(torch::equal(open().train->collate({0, 5, 11}).input, expected)) << name;
    }
    folder.remove(name);
  }
}

TEST_F(IdxTest, EveryTruncationIsAnErrorThatNamesFileAndByte) {
  const std::string whole = pictures(12);
  for (size_t size = 0; size < whole.size(); size += size < 40 ? 1 : 487) {
    folder.write("train-images-idx3-ubyte", whole.substr(0, size));
    expect_data_error({folder.path("train-images-idx3-ubyte"), "byte", "expected"});
  }
  folder.write("train-images-idx3-ubyte", whole.substr(0, 9));
  expect_data_error({"ends at byte 9", "(4 bytes from byte 8 on) is expected"});
  folder.write("train-images-idx3-ubyte", whole.substr(0, 1000));
  expect_data_error({"declares 12 pictures at byte 4", "9408 bytes are expected", "at most 984"});
}

TEST_F(IdxTest, BytesAfterTheEndAreAnError) {
  folder.write("t10k-labels-idx1-ubyte", labels(3) + "x");
  expect_data_error({folder.path("t10k-labels-idx1-ubyte"), "goes on at byte 11"});
}

TEST_F(IdxTest, AWrongMagicNumberNamesBoth) {
  folder.write("train-images-idx3-ubyte", labels(12));
  expect_data_error({"0x00000801", "0x00000803", "mixed up"});
  folder.write("train-images-idx3-ubyte", std::string("<!DOCTYPE html><html>not found</html>"));
  expect_data_error({"0x3C21444F at byte 0", "0x00000803", "another format"});
  folder.write("train-images-idx3-ubyte", word(0x0D03) + pictures(12).substr(4));  // of floats
  expect_data_error({"0x00000D03"});
}

TEST_F(IdxTest, AWrongPictureSizeNamesItsByte) {
  folder.write("train-images-idx3-ubyte",
               word(0x803) + word(1) + word(28) + word(32) + std::string(28 * 32, 'x'));
  expect_data_error({"extent 32 at byte 12", "28 is expected"});
}

TEST_F(IdxTest, CountsOfPicturesAndLabelsMustAgree) {
  folder.write("train-labels-idx1-ubyte", labels(11));
  expect_data_error({folder.path("train-labels-idx1-ubyte"), "11 labels", "12 are expected",
                     folder.path("train-images-idx3-ubyte")});
  folder.write("train-labels-idx1-ubyte", labels(0));
  folder.write("train-images-idx3-ubyte", pictures(0));
  expect_data_error({"declares 0 pictures"});
}

TEST_F(IdxTest, ALabelOutOfRangeNamesItsByte) {
  std::string bytes = labels(12);
  bytes[8 + 7] = 10;
  folder.write("train-labels-idx1-ubyte", bytes);
  expect_data_error({folder.path("train-labels-idx1-ubyte"), "label 10 at byte 15", "0 to 9"});
}

TEST_F(IdxTest, AHugeDeclaredCountIsRefusedBeforeAnythingIsAllocated) {
  const std::string lie = word(0x803) + word(0xFFFFFFFF) + word(28) + word(28);
  for (const std::string& bytes : {lie, gzip(lie)}) {
    folder.write("train-images-idx3-ubyte", bytes);
    const auto begin = std::chrono::steady_clock::now();
    expect_data_error({"4294967295 pictures at byte 4", "at most"});
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(2));
  }
}

TEST_F(IdxTest, DamagedGzipIsAnErrorOrChangesNothing) {
  const std::string whole = gzip(pictures(3));
  const torch::Tensor expected = open().validation->collate({0, 1, 2}).input;
  const auto try_open = [&](const std::string& bytes) {
    folder.write("t10k-images-idx3-ubyte", bytes);
    try {
      EXPECT_TRUE(torch::equal(open().validation->collate({0, 1, 2}).input, expected));
      return false;
    } catch (const base::DataError& error) {
      EXPECT_NE(std::string(error.what()).find("t10k-images-idx3-ubyte' "), std::string::npos);
      return true;
    }
  };
  EXPECT_FALSE(try_open(whole));
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_TRUE(try_open(whole.substr(0, size))) << "cut to " << size;
  }
  int refused = 0;
  for (size_t place = 0; place < whole.size(); ++place) {
    std::string damaged = whole;
    damaged[place] = static_cast<char>(damaged[place] ^ 0x41);
    refused += try_open(damaged);
  }
  EXPECT_GE(refused, static_cast<int>(whole.size()) - 6);  // gzip's time, extra flags and system
  std::string bad_checksum = whole;
  bad_checksum[whole.size() - 8] ^= 1;
  folder.write("t10k-images-idx3-ubyte", bad_checksum);
  expect_data_error({"damaged gzip", "compressed byte", "zlib"});
  folder.write("t10k-images-idx3-ubyte", whole.substr(0, whole.size() / 2));
  expect_data_error({"cut short"});
}

TEST_F(IdxTest, AMissingFileOrFolderIsNamed) {
  folder.remove("t10k-labels-idx1-ubyte");
  expect_data_error({folder.path(), "t10k-labels-idx1-ubyte", ".gz"});
  expect_error<base::DataError>(
      [&] { open_dataset({.name = "mnist", .path = folder.path("nowhere")}); },
      {"nowhere", "not a folder"});
  expect_error<base::UsageError>([] { open_dataset({.name = "mnist"}); }, {"mnist", "path"});
  std::filesystem::create_directory(folder.path("t10k-labels-idx1-ubyte"));
  expect_data_error({"not a regular file"});
}

// Numbers by numpy: tests/golden/train_data/make_fashion_mnist.py.
TEST(FashionMnist, DebiansFilesHoldWhatNumpyFinds) {
  const std::filesystem::path debian = "/usr/share/datasets/fashion-mnist";
  if (!std::filesystem::exists(debian)) {
    expect_error<base::DataError>([] { open_dataset({.name = "fashion-mnist"}); },
                                  {"apt-get install dataset-fashion-mnist"});
    GTEST_SKIP() << "dataset-fashion-mnist is not installed";
  }
  const DatasetPair pair = open_dataset({.name = "fashion-mnist"});
  std::ifstream golden(TORCHAMP_GOLDEN_DIR "/train_data/fashion_mnist.txt");
  for (const auto& [split, data] :
       {std::pair<std::string, std::shared_ptr<Dataset>>{"train", pair.train},
        {"t10k", pair.validation}}) {
    std::string name;
    int64_t count = 0, pixel_sum = 0, label_sum = 0, weighted_labels = 0, weighted_pixels = 0;
    golden >> name >> count;
    ASSERT_EQ(name, split);
    golden >> name >> pixel_sum >> name >> label_sum >> name >> weighted_labels >> name >>
        weighted_pixels;
    std::array<int64_t, 28> rows{};
    golden >> name;
    for (int64_t& row : rows) golden >> row;
    double mean = 0, std = 0;
    golden >> name >> mean >> std;
    ASSERT_TRUE(golden.good());

    ASSERT_EQ(data->size(), count);
    std::vector<int64_t> all(static_cast<size_t>(count));
    std::iota(all.begin(), all.end(), int64_t{0});
    const Batch batch = data->collate(all);
    // Float32 holds the 256 values apart, so the pixels come back exactly by rounding.
    const torch::Tensor pixels = ((batch.input * 0.3530 + 0.2860) * 255).round().to(torch::kLong);
    const torch::Tensor weights = torch::arange(1, count + 1);
    const torch::Tensor by_picture = pixels.flatten(1).sum(1);
    EXPECT_EQ(by_picture.sum().item<int64_t>(), pixel_sum);
    EXPECT_EQ((by_picture * weights).sum().item<int64_t>(), weighted_pixels);
    EXPECT_EQ(batch.target.sum().item<int64_t>(), label_sum);
    EXPECT_EQ((batch.target * weights).sum().item<int64_t>(), weighted_labels);
    for (size_t row = 0; row < 28; ++row) {
      EXPECT_EQ(pixels[17][0][static_cast<int64_t>(row)].sum().item<int64_t>(), rows[row]) << row;
    }
    EXPECT_NEAR(batch.input.mean(torch::kDouble).item<double>(), (mean - 0.2860) / 0.3530, 1e-5);
  }
}

}  // namespace
}  // namespace torchamp::train
