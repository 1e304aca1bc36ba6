#include "cli/error_text.h"

#include <algorithm>
#include <string_view>

namespace torchamp::cli {
namespace {

// Characters of the "[name] " at the start of `text` when `name` is one of C++: it has an
// underscore, colons or a capital among small letters.
size_t caller_size(std::string_view text) {
  if (!text.starts_with('[')) return 0;
  const size_t end = text.find(']');
  if (end == std::string_view::npos || !text.substr(end).starts_with("] ")) return 0;
  constexpr std::string_view kSmall = "abcdefghijklmnopqrstuvwxyz";
  constexpr std::string_view kMark = "_:ABCDEFGHIJKLMNOPQRSTUVWXYZ";
  const std::string_view name = text.substr(1, end - 1);
  bool has_small = false;
  bool has_mark = false;
  for (const char character : name) {
    const bool is_small = kSmall.find(character) != std::string_view::npos;
    const bool is_mark = kMark.find(character) != std::string_view::npos;
    if (!is_small && !is_mark) return 0;
    has_small = has_small || is_small;
    has_mark = has_mark || is_mark;
  }
  return has_small && has_mark ? end + 2 : 0;
}

// Within a sentence a bracket may be part of a name that the user gave.
bool begins_sentence(std::string_view text, size_t at) {
  constexpr std::string_view kEnds = ".:;?";
  return at == 0 ||
         (at >= 2 && text[at - 1] == ' ' && kEnds.find(text[at - 2]) != std::string_view::npos);
}

}  // namespace

std::string without_callers(const std::string& text) {
  std::string result;
  for (size_t i = 0; i < text.size();) {
    const size_t size =
        begins_sentence(text, i) ? caller_size(std::string_view(text).substr(i)) : 0;
    if (size == 0) result += text[i];
    i += std::max<size_t>(size, 1);
  }
  return result;
}

}  // namespace torchamp::cli
