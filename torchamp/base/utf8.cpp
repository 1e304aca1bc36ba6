#include "torchamp/base/utf8.h"

namespace torchamp::base::detail {

Utf8Character first_character(std::string_view text, Surrogates surrogates) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const uint32_t lead = byte(0);
  const size_t length = lead < 0x80   ? 1
                        : lead < 0xC2 ? 0
                        : lead < 0xE0 ? 2
                        : lead < 0xF0 ? 3
                        : lead < 0xF5 ? 4
                                      : 0;
  if (length == 0 || length > text.size()) return {};
  uint32_t code = length == 1 ? lead : lead & (0x7FU >> length);
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0U) != 0x80U) return {};
    code = (code << 6) | (byte(i) & 0x3FU);
  }
  constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool is_refused = surrogates == Surrogates::kRefused && code >= 0xD800 && code < 0xE000;
  if (code < kLeast[length] || code > 0x10FFFF || is_refused) return {};
  return {length, code, true};
}

bool is_utf8(std::string_view text, Surrogates surrogates) {
  while (!text.empty()) {
    const Utf8Character next = first_character(text, surrogates);
    if (!next.is_valid) return false;
    text.remove_prefix(next.num_bytes);
  }
  return true;
}

void append_utf8(std::string& text, uint32_t code) {
  const auto tail = [&](unsigned shift) {
    text.push_back(static_cast<char>(0x80U | ((code >> shift) & 0x3FU)));
  };
  if (code < 0x80) {
    text.push_back(static_cast<char>(code));
  } else if (code < 0x800) {
    text.push_back(static_cast<char>(0xC0U | (code >> 6)));
    tail(0);
  } else if (code < 0x10000) {
    text.push_back(static_cast<char>(0xE0U | (code >> 12)));
    tail(6);
    tail(0);
  } else {
    text.push_back(static_cast<char>(0xF0U | (code >> 18)));
    tail(12);
    tail(6);
    tail(0);
  }
}

}  // namespace torchamp::base::detail
