#include "torchamp/base/one_line.h"

#include <cstdint>

#include "torchamp/base/utf8.h"

namespace torchamp::base {
namespace {

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
    const detail::Utf8Character next =
        detail::first_character(text.substr(i), detail::Surrogates::kRefused);
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
