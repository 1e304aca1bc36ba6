#include "cli/signals.h"

#include <atomic>
#include <csignal>

#include <unistd.h>

namespace torchamp::cli {
namespace {

std::atomic<int> g_stop_signal{0};
static_assert(std::atomic<int>::is_always_lock_free);  // so that a handler may touch it

extern "C" void on_stop_signal(int signal) {
  if (g_stop_signal.exchange(signal) != 0) _exit(128 + signal);
}

}  // namespace

void install_stop_handlers() {
  struct sigaction action = {};
  action.sa_handler = on_stop_signal;
  action.sa_flags = SA_RESTART;  // a read of data goes on
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

int stop_signal() { return g_stop_signal.load(); }

}  // namespace torchamp::cli
