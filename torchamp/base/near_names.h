#pragma once
// The names nearest to a mistyped one, for error sentences. Internal.

#include <string>
#include <string_view>
#include <vector>

namespace torchamp::base::detail {

/// Up to three of `names`, nearest first, "'a', 'b' or 'c'"; empty when none is near: a few letters
/// apart, or one within the other.
std::string near_names(std::string_view name, const std::vector<std::string>& names);

/// Whether `text` fits `pattern`, in which `*` stands for any characters and `?` for one.
bool matches(std::string_view pattern, std::string_view text);

}  // namespace torchamp::base::detail
