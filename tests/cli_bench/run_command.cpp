#include "cli_bench/run_command.h"

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <sstream>
#include <thread>

#include <sys/wait.h>
#include <unistd.h>

#include "support/temporary_folder.h"

namespace torchamp::cli {
namespace {

Output run(const std::string& arguments, int signal, const std::string& after) {
  const TemporaryFolder folder;
  std::ostringstream line;
  line << "exec " << TORCHAMP_COMMAND << ' ' << arguments << " >" << (folder / "out").string()
       << " 2>" << (folder / "err").string();
  const std::string command = line.str();
  const pid_t child = fork();
  if (child == 0) {
    execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
    _exit(127);
  }
  if (signal != 0) {
    for (int tries = 0; tries < 6000 && read_file(folder / "err").find(after) == std::string::npos;
         ++tries) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    kill(child, signal);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return {.exit_code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status),
          .out = read_file(folder / "out"),
          .err = read_file(folder / "err")};
}

}  // namespace

Output run_command(const std::string& arguments) { return run(arguments, 0, ""); }

Output run_and_signal(const std::string& arguments, int signal, const std::string& after) {
  return run(arguments, signal, after);
}

}  // namespace torchamp::cli
