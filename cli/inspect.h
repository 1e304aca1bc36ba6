#pragma once
// torchamp inspect: what is in a checkpoint, and what differs between two.

#include <CLI/CLI.hpp>

namespace torchamp::cli {

/// `exit_code` becomes kFailed where --check or --diff answers no.
void setup_inspect(CLI::App& app, int& exit_code);

}  // namespace torchamp::cli
