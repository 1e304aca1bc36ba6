#pragma once
// The --device option.

#include <string>

#include <c10/core/Device.h>

namespace torchamp::cli {

/// Reads "cpu", "cuda" or "cuda:N". UsageError when the name is unknown or the device is not there.
c10::Device parse_device(const std::string& name);

}  // namespace torchamp::cli
