#include "torchamp/base/loading.h"

#include <algorithm>

#include "torchamp/base/error.h"

namespace torchamp::base {
namespace {

constexpr size_t kShown = 20;      // texts, and names in one; the rest is counted
constexpr size_t kLongest = 3000;  // of one text: 20 printable names, with room for shapes
constexpr size_t kPage = 4000;     // no text is added beyond

}  // namespace

void Differences::add(const std::string& text) {
  ++count_;
  if (is_full_) return;
  text_ += (text_.empty() ? "" : "; ");
  text_ += text.size() > kLongest ? text.substr(0, kLongest) + "..." : text;
  is_full_ = ++texts_ == kShown || text_.size() > kPage;
  if (is_full_) text_ += "; ...";
}

void Differences::add(const char* what, const std::vector<std::string>& names) {
  if (names.empty()) return;
  std::string text = std::to_string(names.size()) + " " + what + " (";
  const size_t shown = std::min(names.size(), kShown);
  for (size_t i = 0; i < shown; ++i) text += (i != 0 ? ", " : "") + names[i];
  if (shown < names.size()) text += ", and " + std::to_string(names.size() - shown) + " more";
  add(text + ")");
  count_ += names.size() - 1;
}

void Differences::attempt(const std::function<void()>& read) {
  try {
    read();
  } catch (const CheckpointError& error) {
    add(error.what());
  }
}

void take_over(const Loading& loading, const std::string& before, const std::string& after) {
  if (!loading.differences.empty()) {
    throw CheckpointError(before + loading.differences.text() + after);
  }
  loading.apply();
}

}  // namespace torchamp::base
