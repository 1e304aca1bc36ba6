#pragma once
// What decides the bits of a CPU computation: LibTorch and its math libraries, the instruction
// sets they choose, the processor and the threads. tests/golden/fingerprint.py is the same in
// Python.

#include <string>

#include <nlohmann/json.hpp>

namespace torchamp::testing {

/// The fingerprint of this process, now: set the number of threads before.
nlohmann::json fingerprint();

/// "threads: 1 recorded, 2 here; ..." for each field that differs; empty when none does.
std::string fingerprint_difference(const nlohmann::json& recorded, const nlohmann::json& here);

}  // namespace torchamp::testing
