#pragma once
// torchamp info: what this machine can do, and which precision to use on it.

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "torchamp/train/machine.h"

namespace torchamp::cli {

/// The "machine" object that info, bench and their readers share.
nlohmann::ordered_json machine_json(const train::MachineInfo& info);

void setup_info(CLI::App& app);

}  // namespace torchamp::cli
