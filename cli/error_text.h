#pragma once
// The library's errors in the words of a command's user.

#include <string>

namespace torchamp::cli {

/// `text` without the C++ names that its sentences begin with, "[checkpoint::load] " or
/// "[GradScaler] ": who types a command has called neither. "[--lr] " and "[train] " stay.
std::string without_callers(const std::string& text);

}  // namespace torchamp::cli
