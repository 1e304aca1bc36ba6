#pragma once
// LibTorch's own autocast rules by op name: which op is cast to what. Internal: AutocastPolicy
// starts from them.

#include <map>
#include <string>
#include <string_view>

#include <ATen/core/operator_name.h>
#include <c10/core/DeviceType.h>

#include "torchamp/amp/op_rule.h"
#include "torchamp/base/export.h"

namespace torchamp::amp::detail {

/// The namespace of LibTorch's own ops, which names of rules leave out.
constexpr std::string_view kAten = "aten::";

/// An op's name as it stands in rules: overload after a dot, "aten::" left out.
std::string short_name(const c10::OperatorName& name);

using OpRules = std::map<std::string, OpRule, std::less<>>;

/// The rules of LibTorch 2.11 to 2.15 for CPU or CUDA, by name and overload as registered, without
/// "aten::". Ops that the running LibTorch does not have are among them.
///
/// Source: CUDA: the lists of ATen/autocast_mode.h. CPU: LibTorch has no such list in its headers;
///         this one was made by probing each registered op, and a test probes them again.
TORCHAMP_API const OpRules& known_rules(c10::DeviceType device_type);

/// What the running LibTorch has registered for autocast on the device, with the rules that are
/// known; kUnknown for others.
TORCHAMP_API OpRules libtorch_rules(c10::DeviceType device_type);

}  // namespace torchamp::amp::detail
