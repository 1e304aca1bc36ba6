#include "cli_bench/run_command.h"

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <thread>

#include <sys/wait.h>
#include <unistd.h>

namespace torchamp::cli {
namespace {

std::string read(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

class Folder {
 public:
  Folder() {
    std::string name = std::filesystem::temp_directory_path() / "torchamp_XXXXXX";
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp failed for " + name);
    path_ = name;
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  std::filesystem::path operator/(const char* name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

Output run(const std::string& arguments, int signal, const std::string& after) {
  const Folder folder;
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
    for (int tries = 0; tries < 6000 && read(folder / "err").find(after) == std::string::npos;
         ++tries) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    kill(child, signal);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return {.exit_code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status),
          .out = read(folder / "out"),
          .err = read(folder / "err")};
}

}  // namespace

Output run_command(const std::string& arguments) { return run(arguments, 0, ""); }

Output run_and_signal(const std::string& arguments, int signal, const std::string& after) {
  return run(arguments, signal, after);
}

}  // namespace torchamp::cli
