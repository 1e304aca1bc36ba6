#pragma once
// Runs the torchamp command as a user does: as a process, with its exit code and what it writes.

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include "support/temporary_folder.h"

namespace torchamp::cli::test {

inline std::vector<std::string> lines(const std::string& text) {
  std::vector<std::string> all;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) all.push_back(line);
  return all;
}

struct Result {
  int exit_code = -1;  // 128 + N when signal N ended it
  std::string out;
  std::string err;
};

/// A folder in which commands run; goes away with the test.
class Folder : public TemporaryFolder {
 public:
  /// Starts `torchamp arguments...` here; stdout goes to `stdout_path`, or to a file that finish()
  /// reads.
  pid_t start(const std::vector<std::string>& arguments, const std::string& stdout_path = "") {
    const std::string out = stdout_path.empty() ? (*this / "stdout.txt").string() : stdout_path;
    const std::string err = (*this / "stderr.txt").string();
    const pid_t child = fork();
    if (child < 0) throw std::runtime_error("fork failed");
    if (child > 0) return child;
    if (chdir(path().c_str()) != 0 || !std::freopen(out.c_str(), "w", stdout) ||
        !std::freopen(err.c_str(), "w", stderr)) {
      _exit(126);
    }
    std::vector<char*> argv = {const_cast<char*>(TORCHAMP_BINARY)};
    for (const std::string& argument : arguments)
      argv.push_back(const_cast<char*>(argument.c_str()));
    argv.push_back(nullptr);
    execv(TORCHAMP_BINARY, argv.data());
    _exit(127);
  }

  Result finish(pid_t child) {
    int status = 0;
    waitpid(child, &status, 0);
    Result result;
    result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    result.out = read_file(*this / "stdout.txt");
    result.err = read_file(*this / "stderr.txt");
    return result;
  }

  Result run(const std::vector<std::string>& arguments, const std::string& stdout_path = "") {
    return finish(start(arguments, stdout_path));
  }
};

/// "a b  c" as {"a", "b", "c"}.
inline std::vector<std::string> words(const std::string& text) {
  std::vector<std::string> all;
  std::istringstream in(text);
  for (std::string word; in >> word;) all.push_back(word);
  return all;
}

/// Waits until `is_ready`, or a minute; returns whether it was.
inline bool wait_for(const std::function<bool()>& is_ready) {
  for (int i = 0; i < 6000; ++i) {
    if (is_ready()) return true;
    usleep(10000);
  }
  return false;
}

}  // namespace torchamp::cli::test
