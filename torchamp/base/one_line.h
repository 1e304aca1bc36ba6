#pragma once
// Text of files and users on its way to a message or a terminal.

#include <cstddef>
#include <string>
#include <string_view>

#include "torchamp/base/export.h"

namespace torchamp::base {

/// `text` on one line: what a terminal would obey (control characters, line ends, directions of
/// writing) and what is no UTF-8 as \n, \x1b or \u202e. Text beyond `most_bytes` becomes "...".
TORCHAMP_API std::string one_line(std::string_view text, size_t most_bytes = std::string::npos);

}  // namespace torchamp::base
