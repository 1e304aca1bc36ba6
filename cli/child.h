#pragma once
// This program, started again as a child: for what must be measured in a process of its own.

#include <string>
#include <vector>

namespace torchamp::cli {

struct ChildOptions {
  std::vector<std::string> environment;  // "NAME=value", added to this process's own
  int timeout_ms = 0;                    // 0 waits for as long as it takes
};

struct ChildResult {
  bool timed_out = false;  // the child was stopped at timeout_ms
  int exit_code = 0;       // 128 + N after signal N
  std::string output;      // what it wrote to stdout; its stderr is this process's
};

/// Runs /proc/self/exe with `arguments` and waits for it. A signal handler that ends this process
/// calls kill_child() first.
ChildResult run_self(const std::vector<std::string>& arguments, const ChildOptions& options = {});

/// Ends the child that run_self() is waiting for, if there is one. Safe in a signal handler.
void kill_child();

/// In the child: end with the parent.
void end_with_parent();

}  // namespace torchamp::cli
