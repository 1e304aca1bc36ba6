#pragma once
// The name of a run in its checkpoints, so that files of two runs in one folder are told apart.

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace torchamp::checkpoint {

/// Where a checkpoint says of which run it is: dict[kManagerKey][kRunIdKey].
inline constexpr const char* kManagerKey = "checkpoint_manager";
inline constexpr const char* kRunIdKey = "run_id";

/// 128 bits of the system's randomness as 32 hexadecimal digits. LibTorch's generators stay as they
/// are.
std::string new_run_id();
/// Whether `text` is of that form.
bool is_run_id(std::string_view text);

/// The run that the file at `path` says it is of; "" where it says none, as files of Python's and
/// of before PyTorch 1.6; nullopt where that cannot be read.
/// Reads the pickle alone, no tensor: of a file whose data are damaged or whose end is gone, too.
std::optional<std::string> run_id_of(const std::filesystem::path& path);

}  // namespace torchamp::checkpoint
