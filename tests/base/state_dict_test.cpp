#include "torchamp/base/state_dict.h"

#include <type_traits>
#include <utility>

#include <gtest/gtest.h>

#include <torch/torch.h>

namespace torchamp::base {
namespace {

TEST(StateDict, KeepsInsertionOrderAndReplacesInPlace) {
  StateDict dict;
  dict.set("b", 1);
  dict.set(int64_t{7}, "seven");
  dict.set("a", 2.5);
  dict.set("b", 3);
  ASSERT_EQ(dict.size(), 3U);
  EXPECT_EQ(to_string(dict.entries()[0].key), "'b'");
  EXPECT_EQ(to_string(dict.entries()[1].key), "7");
  EXPECT_EQ(dict.at("b").to_int(), 3);
  EXPECT_EQ(dict.at(int64_t{7}).to_string(), "seven");
}

TEST(StateDict, NamesTheMissingKeyAndWhatIsThere) {
  StateDict dict;
  dict.set("epoch", 1);
  try {
    dict.at("loss");
    FAIL() << "no error";
  } catch (const CheckpointError& error) {
    EXPECT_NE(std::string(error.what()).find("'loss' is missing; there is: 'epoch'"),
              std::string::npos)
        << error.what();
  }
}

TEST(StateDict, StaysRightWhenItGrowsShrinksAndIsCopied) {
  // 40 keys: beyond the size where the index begins, and back below it.
  StateDict dict;
  for (int64_t i = 0; i < 40; ++i) dict.set(i % 2 == 0 ? StateDict::Key(i) : std::to_string(i), i);
  dict.set(int64_t{38}, "replaced");
  EXPECT_TRUE(dict.erase(int64_t{0}));
  EXPECT_FALSE(dict.erase(int64_t{0}));
  StateDict copy = dict;
  for (int64_t i = 2; i < 30; i += 2) EXPECT_TRUE(copy.erase(i));
  EXPECT_EQ(dict.size(), 39U);
  EXPECT_EQ(copy.size(), 25U);
  EXPECT_EQ(dict.at("1").to_int(), 1);
  EXPECT_EQ(dict.at(int64_t{28}).to_int(), 28);
  EXPECT_EQ(copy.find(int64_t{28}), nullptr);
  EXPECT_EQ(copy.at(int64_t{38}).to_string(), "replaced");
  EXPECT_EQ(to_string(copy.entries().back().key), "'39'");
  const StateDict moved = std::move(copy);
  EXPECT_EQ(moved.at("39").to_int(), 39);
}

TEST(StateDict, EntriesOfATemporaryOutliveIt) {
  const auto make = [] {
    StateDict dict;
    for (int64_t i = 0; i < 40; ++i) dict.set(i, std::string(100, static_cast<char>('a' + i % 26)));
    return dict;
  };
  static_assert(!std::is_reference_v<decltype(make().entries())>);
  static_assert(std::is_reference_v<decltype(std::declval<const StateDict&>().entries())>);
  int64_t count = 0;
  for (const auto& [key, value] : make().entries()) {
    EXPECT_EQ(std::get<int64_t>(key), count);
    EXPECT_EQ(value.to_string(), std::string(100, static_cast<char>('a' + count % 26)));
    ++count;
  }
  EXPECT_EQ(count, 40);
}

TEST(StateDict, ShowsKeysOnOneLine) {
  EXPECT_EQ(to_string(StateDict::Key("a\nb\x1b")), "'a\\nb\\x1b'");
  EXPECT_EQ(printable(std::string(500, 'x')).size(), 123U);         // 120 and three dots
  EXPECT_EQ(printable("a\xc2\x9b\xc2\xa0"), "a\\x9b\xc2\xa0");      // a terminal's CSI, a space
  EXPECT_EQ(printable("\xe2\x80\xae\xe2\x82\xac\xf0\x9f\x98\x80"),  // right to left, a euro, a face
            "\\u202e\xe2\x82\xac\xf0\x9f\x98\x80");
  // No UTF-8: a lone byte, a lone surrogate, two bytes for '/', a character that the end cuts off.
  EXPECT_EQ(printable("\xff|\xed\xa0\x80|\xc0\xaf|\xe2\x82"),
            "\\xff|\\xed\\xa0\\x80|\\xc0\\xaf|\\xe2\\x82");
  EXPECT_EQ(printable(std::string(119, 'x') + "\xe2\x82\xac"
                                              "y"),  // 120 lies within the euro
            std::string(119, 'x') + "\xe2\x82\xac...");
}

TEST(Value, ReadsNumbersByPythonsRules) {
  EXPECT_EQ(Value(0).to_double(), 0.0);  // Python writes SGD's dampening as int 0
  EXPECT_EQ(Value(true).to_int(), 1);
  EXPECT_EQ(Value(torch::tensor(3.0F)).to_double(), 3.0);  // optimizer steps are tensors in Python
  EXPECT_THROW(Value(2.5).to_int(), CheckpointError);
  EXPECT_THROW(Value("1").to_double(), CheckpointError);
  EXPECT_THROW(Value(torch::ones({2})).to_double(), CheckpointError);
}

TEST(Value, HoldsNestedDicts) {
  StateDict inner;
  inner.set("x", List{{1, 2.0, Value()}});
  StateDict outer;
  outer.set("inner", inner);
  const StateDict copy = outer;
  EXPECT_EQ(copy.at("inner").to_dict().at("x").to_items()[1].to_double(), 2.0);
  EXPECT_TRUE(copy.at("inner").to_dict().at("x").to_items()[2].is_none());
}

}  // namespace
}  // namespace torchamp::base
