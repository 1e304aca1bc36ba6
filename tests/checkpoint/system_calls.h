#pragma once
// Stands between the code under test and the system: calls that put files on the disk can be
// counted, made to fail, delayed, or be the last thing a process does.

#include <functional>
#include <string>

namespace torchamp::system_calls {

enum class Action {
  kPass,
  kKillBefore,   // SIGKILL to this process before the call
  kKillHalfway,  // a write of half the bytes, then SIGKILL; other calls: as kKillBefore
  kKillAfter,
};

struct Answer {
  Action action = Action::kPass;
  int error = 0;  // not 0: the call fails with it and does nothing
};

/// Asked before each write, fallocate, fsync, link, rename and unlink, with the name of the call
/// and the path that it makes or takes away ("" where it has a descriptor alone), on the thread
/// that calls.
using Hook = std::function<Answer(const std::string& call, const std::string& path)>;

/// Puts `hook` in the way while it lives. Nothing goes to the disk meanwhile: fsync returns at
/// once, since a process that ends takes nothing away from the system's cache.
class Intercept {
 public:
  explicit Intercept(Hook hook);
  ~Intercept();
  Intercept(const Intercept&) = delete;
  Intercept& operator=(const Intercept&) = delete;
};

}  // namespace torchamp::system_calls
