#pragma once
// UTF-8, one character at a time. Internal.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace torchamp::base::detail {

/// Whether the codes U+D800 to U+DFFF are characters: to Unicode they are none; Python's pickles
/// hold them for what was no text.
enum class Surrogates { kRefused, kAllowed };

struct Utf8Character {
  size_t num_bytes = 1;
  uint32_t code = 0;
  bool is_valid = false;
};

/// The character that `text`, which is not empty, begins with. Not valid: one byte that begins
/// none.
Utf8Character first_character(std::string_view text, Surrogates surrogates);

bool is_utf8(std::string_view text, Surrogates surrogates);

/// Appends the character `code`, up to U+10FFFF.
void append_utf8(std::string& text, uint32_t code);

}  // namespace torchamp::base::detail
