#pragma once
// torchamp convert: the tensors of a model between .pt and safetensors files.

#include <CLI/CLI.hpp>

namespace torchamp::cli {

void setup_convert(CLI::App& app);

}  // namespace torchamp::cli
