#include "support/fingerprint.h"

#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <torch/version.h>

namespace torchamp::testing {
namespace {

using nlohmann::json;

// MKL and oneDNN choose kernels and block sizes by model and cache.
const std::vector<std::string> kCpuInfo = {"vendor_id", "cpu family", "model", "stepping",
                                           "cache size"};
const std::vector<std::string> kFlags = {
    "avx2",        "fma",         "avx_vnni",    "avx512f",  "avx512bw", "avx512vl", "avx512dq",
    "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_bf16", "amx_fp16"};
// Each makes one of the libraries choose other kernels.
const std::vector<std::string> kVariables = {
    "ONEDNN_MAX_CPU_ISA",      "DNNL_MAX_CPU_ISA", "ONEDNN_DEFAULT_FPMATH_MODE",
    "MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR",         "MKL_DEBUG_CPU_TYPE"};

std::string strip(const std::string& text) {
  size_t begin = text.find_first_not_of(" \t");
  size_t end = text.find_last_not_of(" \t\r");
  return begin == std::string::npos ? "" : text.substr(begin, end - begin + 1);
}

// The first processor's lines.
std::map<std::string, std::string> read_cpuinfo() {
  std::map<std::string, std::string> info;
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    size_t colon = line.find(':');
    if (colon != std::string::npos) {
      info.emplace(strip(line.substr(0, colon)), strip(line.substr(colon + 1)));
    }
  }
  return info;
}

// "Intel(R) MKL-DNN v3.10.2 (Git Hash ...)" and its like.
std::vector<std::string> library_versions() {
  std::vector<std::string> lines;
  std::istringstream config(at::show_config());
  for (std::string line; std::getline(config, line);) {
    if (line.rfind("  - Intel(R) ", 0) == 0 || line.rfind("  - GCC ", 0) == 0) {
      lines.push_back(line.substr(4));
    }
  }
  return lines;
}

}  // namespace

json fingerprint() {
  std::map<std::string, std::string> info = read_cpuinfo();
  json cpu = json::array();
  for (const std::string& key : kCpuInfo) {
    cpu.push_back(key + ": " + info[key]);
  }
  json flags = json::array();
  for (const std::string& flag : kFlags) {
    if ((" " + info["flags"] + " ").find(" " + flag + " ") != std::string::npos) {
      flags.push_back(flag);
    }
  }
  json environment = json::array();
  for (const std::string& name : kVariables) {
    const char* value = std::getenv(name.c_str());
    if (value != nullptr && *value != '\0') {
      environment.push_back(name + "=" + value);
    }
  }
  return {{"libtorch", TORCH_VERSION},
          {"libraries", library_versions()},
          {"cpu_capability", at::get_cpu_capability()},
          {"cpu", cpu},
          {"cpu_flags", flags},
          {"environment", environment},
          {"threads", at::get_num_threads()}};
}

std::string fingerprint_difference(const json& recorded, const json& here) {
  std::string difference;
  for (const auto& [key, value] : here.items()) {
    json before = recorded.value(key, json());
    if (before != value) {
      difference += (difference.empty() ? "" : "; ") + key + ": " + before.dump() + " recorded, " +
                    value.dump() + " here";
    }
  }
  return difference;
}

}  // namespace torchamp::testing
