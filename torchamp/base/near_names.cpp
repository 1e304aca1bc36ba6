#include "torchamp/base/near_names.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>

namespace torchamp::base::detail {
namespace {

// Letters to insert, remove or exchange.
size_t distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t exchanged = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({exchanged, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row.back();
}

}  // namespace

std::string near_names(std::string_view name, const std::vector<std::string>& names) {
  std::vector<std::pair<size_t, std::string_view>> candidates;
  for (const auto& candidate : names) {
    const size_t apart = distance(name, candidate);
    const bool contained =
        name.size() > 2 && candidate.size() > 2 &&
        (candidate.find(name) != std::string::npos || name.find(candidate) != std::string::npos);
    if (apart <= 1 + name.size() / 4 || contained) {
      candidates.emplace_back(apart, candidate);
    }
  }
  std::sort(candidates.begin(), candidates.end());
  candidates.erase(std::unique(candidates.begin(), candidates.end()), candidates.end());
  constexpr size_t kMost = 3;
  candidates.resize(std::min(candidates.size(), kMost));
  std::string text;
  for (size_t i = 0; i < candidates.size(); ++i) {
    if (i > 0) {
      text += i + 1 == candidates.size() ? " or " : ", ";
    }
    text.append("'").append(candidates[i].second).append("'");
  }
  return text;
}

bool matches(std::string_view pattern, std::string_view text) {
  // The last star and the text it stood for so far: where to go on after a mismatch.
  size_t p = 0;
  size_t t = 0;
  size_t star = std::string_view::npos;
  size_t star_end = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      star_end = t;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == text[t])) {
      ++p;
      ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++star_end;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == std::string_view::npos;
}

}  // namespace torchamp::base::detail
