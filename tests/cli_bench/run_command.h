#pragma once
// Runs the torchamp command and keeps what it says.

#include <string>

namespace torchamp::cli {

struct Output {
  int exit_code = 0;
  std::string out, err;
};

/// `arguments` as a shell would read them.
Output run_command(const std::string& arguments);

/// Starts the command, sends it `signal` once its stderr holds `after`, and waits for its end.
Output run_and_signal(const std::string& arguments, int signal, const std::string& after);

}  // namespace torchamp::cli
