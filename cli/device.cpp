#include "cli/device.h"

#include <algorithm>

#include <torch/torch.h>

#include "torchamp/base/error.h"

namespace torchamp::cli {

c10::Device parse_device(const std::string& name) {
  if (name == "cpu") return c10::Device(c10::kCPU);
  const std::string index = name.size() > 5 && name.starts_with("cuda:") ? name.substr(5) : "";
  const bool is_number =
      !index.empty() && index.size() <= 3 &&
      std::all_of(index.begin(), index.end(), [](char c) { return c >= '0' && c <= '9'; });
  if (name != "cuda" && !is_number) {
    throw base::UsageError("[--device] '" + name +
                           "' is not a device; cpu, cuda or cuda:N is accepted.");
  }
  const int count = static_cast<int>(torch::cuda::device_count());
  if (count == 0) {
    throw base::UsageError(
        "[--device] '" + name +
        "' was asked for, but no CUDA device is available; cpu is. Was TorchAmp built with "
        "-DTORCHAMP_CUDA=ON on a machine with an NVIDIA driver?");
  }
  const int wanted = is_number ? std::stoi(index) : 0;
  if (wanted >= count) {
    throw base::UsageError(
        "[--device] '" + name + "' was asked for, but there are " + std::to_string(count) +
        " CUDA devices; cuda:0 to cuda:" + std::to_string(count - 1) + " are accepted.");
  }
  return c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(wanted));
}

}  // namespace torchamp::cli
