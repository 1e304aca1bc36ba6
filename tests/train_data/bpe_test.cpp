#include "torchamp/train/data/bpe.h"

#include <fstream>
#include <random>
#include <sstream>

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "torchamp/base/error.h"
#include "train_data/files.h"

namespace torchamp::train {
namespace {

using testing::expect_error;

std::string from_hex(const std::string& hex) {
  std::string bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  }
  return bytes;
}

std::vector<int32_t> to_ints(std::istringstream& words) {
  std::vector<int32_t> ints;
  for (int32_t value = 0; words >> value;) ints.push_back(value);
  return ints;
}

std::string random_bytes(std::mt19937& engine, size_t size, uint32_t distinct) {
  std::string bytes;
  for (size_t i = 0; i < size; ++i) bytes += static_cast<char>(engine() % distinct * 37);
  return bytes;
}

TEST(BytePairEncoding, EqualsASlowReferenceInPython) {
  std::ifstream golden(TORCHAMP_GOLDEN_DIR "/train_data/bpe.txt");
  ASSERT_TRUE(golden.is_open());
  std::string text;
  BytePairEncoding tokenizer;
  int checks = 0;
  for (std::string line; std::getline(golden, line);) {
    std::istringstream words(line);
    std::string name;
    words >> name;
    if (name == "text" || name == "other_text") {
      std::string hex;
      words >> hex;
      text = from_hex(hex);
    } else if (name == "vocab_size") {
      int64_t vocab_size = 0;
      words >> vocab_size;
      tokenizer = BytePairEncoding::train(text, vocab_size);
    } else if (name == "merges") {
      std::vector<int32_t> flat;
      for (const auto& [left, right] : tokenizer.merges()) {
        flat.push_back(left);
        flat.push_back(right);
      }
      EXPECT_EQ(flat, to_ints(words));
      ++checks;
    } else {
      EXPECT_EQ(tokenizer.encode(text), to_ints(words)) << name;
      ++checks;
    }
  }
  EXPECT_EQ(checks, 9);
}

TEST(BytePairEncoding, DecodeGivesBackEveryByteString) {
  std::mt19937 engine(5);
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all += static_cast<char>(byte);
  const std::string training = all + random_bytes(engine, 20000, 6) + "  the the the  \n\n then ";
  for (const int64_t vocab_size : {256, 257, 700, 8192}) {
    const BytePairEncoding tokenizer = BytePairEncoding::train(training, vocab_size);
    EXPECT_LE(tokenizer.vocab_size(), vocab_size);
    std::vector<std::string> texts = {"",
                                      " ",
                                      "\n",
                                      "the",
                                      " the",
                                      all,
                                      "\xff",
                                      std::string(3, '\0'),
                                      training,
                                      std::string(500, ' '),
                                      std::string(500, 'a')};
    for (uint32_t i = 0; i < 200; ++i) texts.push_back(random_bytes(engine, engine() % 200, 1 + i));
    for (const std::string& text : texts) {
      const std::vector<int32_t> tokens = tokenizer.encode(text);
      EXPECT_EQ(tokenizer.decode(tokens), text);
      for (const int32_t token : tokens) ASSERT_LT(token, tokenizer.vocab_size());
    }
  }
}

TEST(BytePairEncoding, StopsWhenNoPairOccursTwice) {
  EXPECT_EQ(BytePairEncoding::train("abcdefg", 8192).vocab_size(), 256);
  EXPECT_EQ(BytePairEncoding::train("", 8192).vocab_size(), 256);
  EXPECT_EQ(BytePairEncoding::train("ab!ab", 8192).merges(),
            (std::vector<BytePairEncoding::Pair>{{'a', 'b'}}));
}

TEST(BytePairEncoding, EqualCountsGoToTheSmallestPair) {
  EXPECT_EQ(BytePairEncoding::train("zy!zy!ba!ba!", 257).merges(),
            (std::vector<BytePairEncoding::Pair>{{'b', 'a'}}));
}

TEST(BytePairEncoding, StateRestoresTheSameTokenizer) {
  std::mt19937 engine(6);
  const std::string text = random_bytes(engine, 5000, 5);
  const BytePairEncoding tokenizer = BytePairEncoding::train(text, 400);
  const base::StateDict state = tokenizer.state_dict();
  EXPECT_EQ(state.at("merges").to_tensor().sizes(),
            (std::vector<int64_t>{tokenizer.vocab_size() - 256, 2}));
  const BytePairEncoding restored = BytePairEncoding::from_state_dict(state);
  EXPECT_EQ(restored.merges(), tokenizer.merges());
  EXPECT_EQ(restored.encode(text), tokenizer.encode(text));
  EXPECT_EQ(BytePairEncoding::from_state_dict(BytePairEncoding().state_dict()).vocab_size(), 256);
}

TEST(BytePairEncoding, RefusesAStateThatItCannotHaveMade) {
  const auto with = [](const char* key, base::Value value) {
    base::StateDict state = BytePairEncoding().state_dict();
    state.set(key, std::move(value));
    return [state] { BytePairEncoding::from_state_dict(state); };
  };
  using base::CheckpointError;
  expect_error<CheckpointError>([] { BytePairEncoding::from_state_dict({}); }, {"'kind'"});
  expect_error<CheckpointError>(with("kind", "wordpiece"), {"'wordpiece'", "'byte_bpe'"});
  expect_error<CheckpointError>(with("version", 2), {"version 2"});
  expect_error<CheckpointError>(with("merges", 3), {"'merges'"});
  expect_error<CheckpointError>(with("merges", torch::zeros({4, 2})), {"int64 tensor"});
  expect_error<CheckpointError>(with("merges", torch::zeros({4}, torch::kLong)), {"[M, 2]"});
  expect_error<CheckpointError>(with("merges", torch::tensor({{97, 98}, {257, 97}})),
                                {"merge 1 is (257, 97)", "0 to 256"});
  expect_error<CheckpointError>(with("merges", torch::tensor({{-1, 98}})), {"merge 0 is (-1, 98)"});
  // Each merge doubles the last token: 2^7 bytes would be the 7th.
  const torch::Tensor doubling = torch::tensor(
      {{97, 97}, {256, 256}, {257, 257}, {258, 258}, {259, 259}, {260, 260}, {261, 261}});
  expect_error<CheckpointError>(with("merges", doubling), {"merge 6", "64 bytes"});
}

TEST(BytePairEncoding, RefusesVocabulariesAndTokensOutOfRange) {
  for (const int64_t vocab_size : {int64_t{-1}, int64_t{0}, int64_t{255}, (int64_t{1} << 20) + 1}) {
    expect_error<base::UsageError>([&] { BytePairEncoding::train("text", vocab_size); },
                                   {std::to_string(vocab_size) + " tokens", "256"});
  }
  expect_error<base::UsageError>([] { BytePairEncoding().decode({97, 256}); }, {"256", "0 to 255"});
  EXPECT_THROW(BytePairEncoding().decode({-1}), base::UsageError);
}

}  // namespace
}  // namespace torchamp::train
