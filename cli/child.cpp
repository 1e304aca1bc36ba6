#include "cli/child.h"

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstring>
#include <stdexcept>

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace torchamp::cli {
namespace {

std::atomic<pid_t> running_child{0};
static_assert(std::atomic<pid_t>::is_always_lock_free, "kill_child() runs in a signal handler");

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> result;
  for (std::string& text : strings) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

// A later assignment in `added` replaces an inherited one of the same name.
std::vector<std::string> merged_environment(const std::vector<std::string>& added) {
  std::vector<std::string> result = added;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const std::string name = text.substr(0, text.find('=') + 1);
    bool replaced = false;
    for (const std::string& other : added) replaced = replaced || other.starts_with(name);
    if (!replaced) result.push_back(text);
  }
  return result;
}

[[noreturn]] void fail(const char* what, int error) {
  throw std::runtime_error(std::string("[run_self] ") + what + " failed: " + std::strerror(error) +
                           ". Is the machine out of memory or of processes?");
}

}  // namespace

ChildResult run_self(const std::vector<std::string>& arguments, const ChildOptions& options) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) fail("pipe", errno);
  std::vector<std::string> words = {"torchamp"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<std::string> environment = merged_environment(options.environment);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  pid_t child = 0;
  const int error = posix_spawn(&child, "/proc/self/exe", &actions, nullptr, pointers(words).data(),
                                pointers(environment).data());
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  if (error != 0) {
    close(ends[0]);
    fail("starting a child process", error);
  }
  running_child = child;

  ChildResult result;
  const auto deadline =
      std::chrono::steady_clock::now() + std::chrono::milliseconds(options.timeout_ms);
  char buffer[4096];
  while (true) {
    int wait_ms = -1;
    if (options.timeout_ms > 0) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
          deadline - std::chrono::steady_clock::now());
      wait_ms = static_cast<int>(std::max<int64_t>(0, left.count()));
    }
    pollfd readable = {.fd = ends[0], .events = POLLIN, .revents = 0};
    const int ready = poll(&readable, 1, wait_ms);
    if (ready < 0 && errno == EINTR) continue;
    if (ready == 0) {
      result.timed_out = true;
      kill(child, SIGKILL);
      break;
    }
    const ssize_t count = read(ends[0], buffer, sizeof(buffer));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    result.output.append(buffer, static_cast<size_t>(count));
  }
  close(ends[0]);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  running_child = 0;
  result.exit_code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  return result;
}

void kill_child() {
  const pid_t child = running_child;
  if (child > 0) kill(child, SIGKILL);
}

void end_with_parent() { prctl(PR_SET_PDEATHSIG, SIGKILL); }

}  // namespace torchamp::cli
