// Plain texts as windows of tokens.

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "torchamp/base/error.h"
#include "torchamp/train/data/bpe.h"
#include "torchamp/train/data/dataset.h"
#include "train_data/files.h"

namespace torchamp::train {
namespace {

using testing::expect_error;
using testing::ScratchFolder;

// 1000 bytes, lines of 10: "line 0007\n".
std::string lines() {
  std::string text;
  for (int i = 0; i < 100; ++i) {
    const std::string number = std::to_string(i);
    text += "line " + std::string(4 - number.size(), '0') + number + "\n";
  }
  return text;
}

std::vector<int32_t> row(const torch::Tensor& tensor) {
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    tokens.push_back(static_cast<int32_t>(tensor[i].item<int64_t>()));
  }
  return tokens;
}

class TextTest : public ::testing::Test {
 protected:
  void SetUp() override { folder.write("book.txt", lines()); }
  DataOptions options(int64_t context, int64_t vocab_size) const {
    return {.name = "text",
            .path = folder.path("book.txt"),
            .context = context,
            .vocab_size = vocab_size};
  }
  ScratchFolder folder;
};

TEST_F(TextTest, WindowsOfBytesAreTheTextItselfAndTargetsItsNextBytes) {
  const DatasetPair pair = open_dataset(options(8, 256));
  const std::string text = lines();
  EXPECT_EQ(pair.train->info().num_classes, 256);
  EXPECT_TRUE(pair.train->info().is_text);
  EXPECT_EQ(pair.train->info().input_dtype, torch::kLong);
  EXPECT_EQ(pair.train->info().input_shape, (std::vector<int64_t>{8}));
  ASSERT_EQ(pair.train->size(), (900 - 1) / 8);
  ASSERT_EQ(pair.validation->size(), (100 - 1) / 8);
  const BytePairEncoding bytes;
  for (const auto& [data, begin] :
       {std::pair{pair.train, size_t{0}}, {pair.validation, size_t{900}}}) {
    for (const int64_t window : {int64_t{0}, int64_t{1}, data->size() - 1}) {
      const Batch batch = data->collate({window});
      ASSERT_EQ(batch.input.sizes(), (std::vector<int64_t>{1, 8}));
      ASSERT_EQ(batch.input.scalar_type(), torch::kLong);
      const size_t at = begin + static_cast<size_t>(window) * 8;
      EXPECT_EQ(bytes.decode(row(batch.input[0])), text.substr(at, 8));
      EXPECT_EQ(bytes.decode(row(batch.target[0])), text.substr(at + 1, 8));
    }
  }
}

TEST_F(TextTest, ATrainedTokenizerCoversTheTrainingPartAlone) {
  const DatasetPair pair = open_dataset(options(4, 300));
  const BytePairEncoding tokenizer = BytePairEncoding::from_state_dict(pair.state);
  EXPECT_EQ(tokenizer.merges(), BytePairEncoding::train(lines().substr(0, 900), 300).merges());
  EXPECT_EQ(pair.train->info().num_classes, tokenizer.vocab_size());
  const std::vector<int32_t> tokens = tokenizer.encode(lines().substr(900));
  EXPECT_EQ(pair.validation->size(), (static_cast<int64_t>(tokens.size()) - 1) / 4);
  EXPECT_EQ(row(pair.validation->collate({1}).target[0]),
            std::vector<int32_t>(tokens.begin() + 5, tokens.begin() + 9));
}

TEST_F(TextTest, AStateTakesThePlaceOfTraining) {
  const base::StateDict state = BytePairEncoding::train("0000 0000 line line", 260).state_dict();
  DataOptions resumed = options(4, 8192);
  resumed.state = &state;
  const DatasetPair pair = open_dataset(resumed);
  EXPECT_EQ(pair.train->info().num_classes, BytePairEncoding::from_state_dict(state).vocab_size());
  EXPECT_TRUE(torch::equal(pair.state.at("merges").to_tensor(), state.at("merges").to_tensor()));
  const base::StateDict empty;
  resumed.state = &empty;
  EXPECT_THROW(open_dataset(resumed), base::CheckpointError);
}

TEST_F(TextTest, LimitKeepsTheFirstWindows) {
  DataOptions limited = options(8, 256);
  limited.limit = 3;
  const DatasetPair pair = open_dataset(limited);
  EXPECT_EQ(pair.train->size(), 3);
  EXPECT_EQ(pair.validation->size(), 12);
  EXPECT_THROW(pair.train->collate({3}), c10::IndexError);
}

TEST_F(TextTest, ATextOfExactlyOneWindowEachIsEnough) {
  folder.write("book.txt", lines().substr(0, 90));
  EXPECT_EQ(open_dataset(options(8, 256)).validation->size(), 1);
  EXPECT_EQ(open_dataset(options(8, 256)).train->size(), 10);
}

TEST_F(TextTest, ATextTooShortForOneWindowSaysHowMuchIsNeeded) {
  expect_error<base::DataError>(
      [&] { open_dataset(options(100, 256)); },
      {folder.path("book.txt"), "validation part has 100 tokens", "byte 1000", "takes 101"});
  folder.write("book.txt", "");
  expect_error<base::DataError>([&] { open_dataset(options(8, 256)); },
                                {folder.path("book.txt"), "empty", "byte 0"});
  folder.write("book.txt", "ten bytes!");
  expect_error<base::DataError>([&] { open_dataset(options(8, 256)); }, {"1 tokens", "takes 9"});
}

TEST_F(TextTest, RefusesWhatIsNoTextFileAndSizesOutOfRange) {
  expect_error<base::UsageError>([] { open_dataset({.name = "text"}); }, {"'text' needs a path"});
  expect_error<base::DataError>(
      [&] { open_dataset({.name = "text", .path = folder.path("absent.txt")}); },
      {folder.path("absent.txt"), "does not exist"});
  expect_error<base::DataError>([&] { open_dataset({.name = "text", .path = folder.path()}); },
                                {"not a regular file"});
  EXPECT_THROW(open_dataset(options(0, 256)), base::UsageError);
  EXPECT_THROW(open_dataset(options(8, 255)), base::UsageError);
}

}  // namespace
}  // namespace torchamp::train
