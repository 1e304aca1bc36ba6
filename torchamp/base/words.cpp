#include "torchamp/base/words.h"

namespace torchamp::base {

std::string with_article(std::string_view noun) {
  if (noun == "None" || noun == "bytes") return std::string(noun);
  const bool is_vowel =
      !noun.empty() && std::string_view("aeiou").find(noun[0]) != std::string_view::npos;
  return (is_vowel ? "an " : "a ") + std::string(noun);
}

std::string counted(uint64_t count, std::string_view singular, std::string_view plural) {
  std::string text = std::to_string(count) + " ";
  text += count == 1 || plural.empty() ? singular : plural;
  if (count != 1 && plural.empty()) text += 's';
  return text;
}

std::string dtype_name(at::ScalarType dtype) {
  if (dtype == at::ScalarType::Undefined) return "undefined";
  return std::string(c10::getDtypeNames(dtype).first);
}

}  // namespace torchamp::base
