// The torchamp command: wires the subcommands, turns errors into one line and an exit code.

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <new>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include <c10/util/Exception.h>

#include "cli/bench.h"
#include "cli/convert.h"
#include "cli/error_text.h"
#include "cli/exit_code.h"
#include "cli/info.h"
#include "cli/inspect.h"
#include "cli/train.h"
#include "torchamp/base/error.h"
#include "torchamp/base/version.h"

namespace {

namespace cli = torchamp::cli;

// One line, whatever names and values the user gave are part of it.
int report(const std::string& error, int code) {
  constexpr size_t kLongest = 2000;
  std::string text = cli::without_callers(error);
  if (text.size() > kLongest) text = text.substr(0, kLongest) + " [...]";
  for (char& character : text) {
    if (character == '\n' || character == '\r' || character == '\x1b') character = ' ';
  }
  std::fprintf(stderr, "torchamp: %s\n", text.c_str());
  return code;
}

// LibTorch's texts may go on for lines; the first one says what happened. Its CPU allocator has no
// type of error of its own.
int report_libtorch(const c10::Error& error) {
  std::string text = error.what_without_backtrace();
  text = text.substr(0, text.find('\n'));
  const size_t allocator = text.find("DefaultCPUAllocator: ");
  if (allocator == std::string::npos && !dynamic_cast<const c10::OutOfMemoryError*>(&error)) {
    return report(text, cli::kFailed);
  }
  if (allocator != std::string::npos) text = text.substr(allocator);
  return report("[memory] " + text + (text.ends_with('.') ? " " : "; ") +
                    "A smaller --batch or a smaller model needs less.",
                cli::kFailed);
}

// CLI11 reports a missing subcommand before it reports the word that stands in its place.
std::string explain(const CLI::App& app, const CLI::ParseError& error) {
  const std::vector<std::string> unknown = app.remaining();
  if (!dynamic_cast<const CLI::RequiredError*>(&error) || unknown.empty() ||
      !app.get_subcommands().empty()) {
    return error.what();
  }
  std::string accepted;
  for (const CLI::App* each : app.get_subcommands([](const CLI::App*) { return true; })) {
    accepted += (accepted.empty() ? "" : ", ") + each->get_name();
  }
  return "'" + unknown.front() + "' is not a subcommand; accepted are: " + accepted;
}

// An empty value would pass as zero or as not given: `--lr "$LR"` with LR unset.
void refuse_empty_values(CLI::App& app) {
  const auto check = [](const std::string& value) {
    return value.empty()
               ? std::string("an empty value was given; leave the option out, or give one")
               : std::string();
  };
  for (CLI::App* command : app.get_subcommands([](CLI::App*) { return true; })) {
    for (CLI::Option* option : command->get_options()) option->check(check);
  }
}

int report_unwritten_output() {
  return report(std::string("The output could not be written: ") + std::strerror(errno) + ".",
                cli::kFailed);
}

}  // namespace

int main(int argc, char** argv) {
  namespace base = torchamp::base;
  std::signal(SIGPIPE, SIG_IGN);  // a closed pipe is an error with a sentence, as a full disk is
  CLI::App app("Mixed-precision training for LibTorch: train, measure, look inside.", "torchamp");
  app.set_version_flag("--version", TORCHAMP_VERSION);
  app.require_subcommand(1);
  int exit_code = cli::kDone;
  cli::setup_bench(app);
  cli::setup_convert(app);
  cli::setup_info(app);
  cli::setup_inspect(app, exit_code);
  cli::setup_train(app);
  refuse_empty_values(app);
  try {
    app.parse(argc, argv);
    return std::fflush(stdout) == 0 ? exit_code : report_unwritten_output();
  } catch (const CLI::Success& request) {  // --help, --version
    const int code = app.exit(request);
    return std::cout.flush() ? code : report_unwritten_output();
  } catch (const CLI::ParseError& error) {
    return report(explain(app, error) + " (torchamp --help lists what is accepted)", cli::kUsage);
  } catch (const base::Interrupted& error) {
    return report(error.what(), error.signal() == SIGTERM ? cli::kTerminated : cli::kInterrupted);
  } catch (const base::UsageError& error) {
    return report(error.what(), cli::kUsage);
  } catch (const c10::Error& error) {
    return report_libtorch(error);
  } catch (const std::bad_alloc&) {
    return report(
        "[memory] The memory did not suffice; smaller data, a smaller --batch or a smaller model "
        "needs less.",
        cli::kFailed);
  } catch (const std::exception& error) {
    return report(error.what(), cli::kFailed);
  }
}
