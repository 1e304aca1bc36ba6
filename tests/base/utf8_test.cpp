#include "torchamp/base/utf8.h"

#include <gtest/gtest.h>

namespace torchamp::base::detail {
namespace {

TEST(Utf8, EveryCharacterComesBack) {
  for (uint32_t code = 0; code <= 0x10FFFF; ++code) {
    std::string text;
    append_utf8(text, code);
    ASSERT_EQ(text.size(), code < 0x80 ? 1U : code < 0x800 ? 2U : code < 0x10000 ? 3U : 4U);
    const Utf8Character read = first_character(text + "x", Surrogates::kAllowed);
    ASSERT_TRUE(read.is_valid && read.code == code && read.num_bytes == text.size()) << code;
    const bool is_surrogate = code >= 0xD800 && code < 0xE000;
    ASSERT_EQ(is_utf8(text, Surrogates::kRefused), !is_surrogate) << code;
  }
}

TEST(Utf8, EveryOtherStartOfThreeBytesIsNone) {
  // Unicode 3.9, table 3-7: what may follow which first byte, with surrogates let in.
  const auto is_tail = [](int byte) { return byte >= 0x80 && byte < 0xC0; };
  size_t num_valid = 0;
  for (int a = 0; a < 256; ++a) {
    for (int b = 0; b < 256; ++b) {
      const std::string text = {static_cast<char>(a), static_cast<char>(b), '\x80'};
      const bool is_two = a >= 0xC2 && a < 0xE0 && is_tail(b);
      const bool is_three = a >= 0xE0 && a < 0xF0 && is_tail(b) && (a != 0xE0 || b >= 0xA0);
      const Utf8Character read = first_character(text, Surrogates::kAllowed);
      ASSERT_EQ(read.is_valid, a < 0x80 || is_two || is_three) << a << " " << b;
      num_valid += read.is_valid;
    }
  }
  EXPECT_EQ(num_valid, 128U * 256 + 30 * 64 + 15 * 64 + 32);
}

TEST(Utf8, FourBytesEndAtTheLastCharacter) {
  EXPECT_TRUE(is_utf8("\xf0\x90\x80\x80\xf4\x8f\xbf\xbf", Surrogates::kRefused));
  for (const char* text : {"\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80",
                           "\xf0\x9f\x98", "\xf0\x9f\x98x", "a\xff"}) {
    EXPECT_FALSE(is_utf8(text, Surrogates::kAllowed)) << text;
  }
}

}  // namespace
}  // namespace torchamp::base::detail
