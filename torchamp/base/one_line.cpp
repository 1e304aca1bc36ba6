#include "torchamp/base/one_line.h"

#include <cstdint>

namespace torchamp::base {
namespace {

struct Character {
  size_t num_bytes = 1;
  uint32_t code = 0;
  bool is_valid = false;
};

// The character of UTF-8 that `text`, which is not empty, begins with.
Character first_character(std::string_view text) {
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
  const bool is_surrogate = code >= 0xD800 && code < 0xE000;
  if (code < kLeast[length] || code > 0x10FFFF || is_surrogate) return {};
  return {length, code, true};
}

// What terminals obey instead of showing it: control characters, line ends, directions of writing.
bool is_control(uint32_t code) {
  return code < 0x20 || (code >= 0x7F && code < 0xA0) || code == 0x200E || code == 0x200F ||
         (code >= 0x2028 && code <= 0x202E) || (code >= 0x2066 && code <= 0x2069);
}

std::string hexadecimal(uint32_t value, int num_digits) {
  std::string digits;
  for (int i = num_digits; i-- > 0;) digits += "0123456789abcdef"[(value >> (4 * i)) & 0xFU];
  return digits;
}

}  // namespace

std::string one_line(std::string_view text, size_t most_bytes) {
  std::string result;
  for (size_t i = 0; i < text.size();) {
    if (i >= most_bytes) return result + "...";
    const Character next = first_character(text.substr(i));
    if (!next.is_valid) {
      result += "\\x" + hexadecimal(static_cast<unsigned char>(text[i]), 2);
    } else if (next.code == '\n') {
      result += "\\n";
    } else if (is_control(next.code)) {
      result +=
          next.code < 0x100 ? "\\x" + hexadecimal(next.code, 2) : "\\u" + hexadecimal(next.code, 4);
    } else {
      result += text.substr(i, next.num_bytes);
    }
    i += next.num_bytes;
  }
  return result;
}

}  // namespace torchamp::base
