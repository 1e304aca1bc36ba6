#pragma once
// Words that messages are built of: articles, counts, Python's names of dtypes.

#include <cstdint>
#include <string>
#include <string_view>

#include <c10/core/ScalarType.h>

#include "torchamp/base/export.h"

namespace torchamp::base {

/// "a dict", "an int": `noun` behind its article, told by its first letter; "None" and "bytes" have
/// none.
TORCHAMP_API std::string with_article(std::string_view noun);

/// "1 tensor", "2 tensors"; `plural` where an s alone does not make it: "2 entries".
TORCHAMP_API std::string counted(uint64_t count, std::string_view singular,
                                 std::string_view plural = {});

/// Python's name of `dtype`, without "torch.": float32. "undefined" for none.
TORCHAMP_API std::string dtype_name(at::ScalarType dtype);

}  // namespace torchamp::base
