#pragma once
// OpRule: what autocast does to the floating-point arguments of an op.

#include <cstdint>

namespace torchamp::amp {

/// float64, integer, bool and complex arguments are left alone by all of them, and so are tensors
/// of another device type.
enum class OpRule : uint8_t {
  kFallThrough,      ///< not listed: runs in the types of its inputs; ops inside follow their rules
  kLowerPrecision,   ///< casts to the region's dtype
  kFp32,             ///< casts to float32
  kFp32SetOptDtype,  ///< fills in dtype=float32 where the caller gave none
  kFp32AppendDtype,  ///< calls the overload that takes a dtype, with float32
  kPromote,          ///< casts to the widest type among the arguments
  kBanned,           ///< an error: the op is unsafe in 16 bits
  kDeny,             ///< nothing is cast, in this op and in the ops that it consists of
  kUnknown,          ///< LibTorch's own kernel, whose rule is not known here
};

/// "lower_precision_fp", "fp32", "fp32_set_opt_dtype", "fp32_append_dtype", "promote", "banned" as
/// in LibTorch's sources; "fallthrough", "deny", "unknown".
constexpr const char* name_of(OpRule rule) {
  switch (rule) {
    case OpRule::kFallThrough:
      return "fallthrough";
    case OpRule::kLowerPrecision:
      return "lower_precision_fp";
    case OpRule::kFp32:
      return "fp32";
    case OpRule::kFp32SetOptDtype:
      return "fp32_set_opt_dtype";
    case OpRule::kFp32AppendDtype:
      return "fp32_append_dtype";
    case OpRule::kPromote:
      return "promote";
    case OpRule::kBanned:
      return "banned";
    case OpRule::kDeny:
      return "deny";
    default:
      return "unknown";
  }
}

}  // namespace torchamp::amp
