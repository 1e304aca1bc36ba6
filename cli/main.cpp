// The torchamp command: wires the subcommands, turns errors into one line and an exit code.

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <string>

#include <CLI/CLI.hpp>

#include <c10/util/Exception.h>

#include "cli/bench.h"
#include "cli/exit_code.h"
#include "cli/info.h"
#include "cli/train.h"
#include "torchamp/base/error.h"
#include "torchamp/base/version.h"

namespace {

int report(const std::string& text, int code) {
  // LibTorch's texts may go on for lines; the first one says what happened.
  std::fprintf(stderr, "torchamp: %s\n", text.substr(0, text.find('\n')).c_str());
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  using namespace torchamp;  // NOLINT(google-build-using-namespace): the program's own top level
  std::signal(SIGPIPE, SIG_IGN);  // a closed pipe is an error with a sentence, as a full disk is
  CLI::App app("Mixed-precision training for LibTorch: train, measure, look inside.", "torchamp");
  app.set_version_flag("--version", TORCHAMP_VERSION);
  app.require_subcommand(1);
  cli::setup_bench(app);
  cli::setup_info(app);
  cli::setup_train(app);
  try {
    app.parse(argc, argv);
    if (std::fflush(stdout) != 0) {
      throw base::Error(std::string("The output could not be written: ") + std::strerror(errno) +
                        ".");
    }
    return cli::kDone;
  } catch (const CLI::Success& request) {  // --help, --version
    return app.exit(request);
  } catch (const CLI::ParseError& error) {
    return report(std::string(error.what()) + " (torchamp --help lists what is accepted)",
                  cli::kUsage);
  } catch (const base::Interrupted& error) {
    return report(error.what(), error.signal() == SIGTERM ? cli::kTerminated : cli::kInterrupted);
  } catch (const base::UsageError& error) {
    return report(error.what(), cli::kUsage);
  } catch (const c10::Error& error) {
    return report(error.what_without_backtrace(), cli::kFailed);
  } catch (const std::exception& error) {
    return report(error.what(), cli::kFailed);
  }
}
