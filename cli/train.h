#pragma once
// torchamp train: the complete training loop on a data set and a model by name.

#include <CLI/CLI.hpp>

namespace torchamp::cli {

void setup_train(CLI::App& app);

}  // namespace torchamp::cli
