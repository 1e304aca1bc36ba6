#pragma once
// What both fuzz targets share: a file in memory, the rule for exceptions, the bound on memory, and
// proof that a tensor's elements lie inside the file. A broken rule ends the process by abort(),
// which libFuzzer reports with the input.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string_view>

#include "torchamp/base/state_dict.h"

namespace torchamp::fuzz {

/// Writes `bytes` to the one file in memory, anew, and returns its path.
std::filesystem::path file_of(std::string_view bytes);

/// Runs `read`. Ends the process when it throws anything but CheckpointError of one line that names
/// the file, or when live memory grew in it by more than `most_bytes`. Returns whether it returned.
bool reads(const char* what, size_t most_bytes, const std::function<void()>& read);

/// Touches every byte that `value` holds. Ends the process when a tensor's elements do not lie in
/// its storage, or a storage is larger than `file_bytes`.
void use(const base::Value& value, size_t file_bytes);

/// Same types, values and bits; NaN equals itself.
bool same(const base::Value& a, const base::Value& b);

/// Says why, and ends the process.
[[noreturn]] void fault(const char* what, std::string_view why);

}  // namespace torchamp::fuzz
