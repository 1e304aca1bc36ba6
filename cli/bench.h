#pragma once
// torchamp bench: what a training step costs in each precision, on this machine.

#include <CLI/CLI.hpp>

namespace torchamp::cli {

void setup_bench(CLI::App& app);

}  // namespace torchamp::cli
