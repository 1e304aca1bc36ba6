#pragma once
// Cuts a text into the words that BytePairEncoding works in; the rule is stated there.

#include <cstddef>
#include <string_view>

namespace torchamp::train {

constexpr size_t kMaxWordBytes = 64;  // bounds the work a word can cause, which grows as its square

namespace detail {

enum class Sign { kSpace, kLetter, kDigit, kOther };

inline Sign sign_of(char c) {
  const auto byte = static_cast<unsigned char>(c);
  if (byte == ' ' || (byte >= '\t' && byte <= '\r')) return Sign::kSpace;
  if (byte >= 128 || (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z')) {
    return Sign::kLetter;
  }
  return byte >= '0' && byte <= '9' ? Sign::kDigit : Sign::kOther;
}

}  // namespace detail

/// The length of the word at the start of `text`; 0 only if it is empty.
inline size_t word_length(std::string_view text) {
  using detail::Sign;
  using detail::sign_of;
  if (text.empty()) return 0;
  const bool led_by_space = text.size() > 1 && text[0] == ' ' && sign_of(text[1]) != Sign::kSpace;
  size_t end = led_by_space ? 1 : 0;
  const Sign sign = sign_of(text[end]);
  const size_t limit = text.size() < kMaxWordBytes ? text.size() : kMaxWordBytes;
  while (end < limit && sign_of(text[end]) == sign) ++end;
  const bool word_follows = end < text.size() && sign_of(text[end]) != Sign::kSpace;
  if (sign == Sign::kSpace && word_follows && end > 1 && text[end - 1] == ' ') --end;
  return end;
}

}  // namespace torchamp::train
