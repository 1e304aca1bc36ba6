#pragma once
// A state compared with what is to take it over, so that a whole checkpoint is taken over or none
// of it.

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "torchamp/base/export.h"

namespace torchamp::base {

/// What a state and its taker differ in, for one message: a page of text, however many there are.
class TORCHAMP_API Differences {
 public:
  void add(const std::string& text);
  /// One text for several of a kind, "2 missing ('a', 'b')"; nothing when there are none.
  void add(const char* what, const std::vector<std::string>& names);
  /// Runs `read`; a CheckpointError of it is a difference.
  void attempt(const std::function<void()>& read);

  size_t count() const { return count_; }
  bool empty() const { return count_ == 0; }
  /// The differences, "; " in between; "..." at the end where the page is full.
  const std::string& text() const { return text_; }

 private:
  size_t count_ = 0;
  size_t texts_ = 0;
  bool is_full_ = false;
  std::string text_;
};

/// A state that was compared, and not yet taken over.
struct Loading {
  Differences differences;
  /// Takes the state over; throws for want of memory alone. Only when there are no differences, and
  /// while both state and taker live.
  std::function<void()> apply;
};

/// Takes over a state; CheckpointError with `before`, the differences and `after` when there are
/// any.
TORCHAMP_API void take_over(const Loading& loading, const std::string& before,
                            const std::string& after);

}  // namespace torchamp::base
