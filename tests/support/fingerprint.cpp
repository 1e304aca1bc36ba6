#include "support/fingerprint.h"

#include <climits>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>
#include <vector>

#include <gtest/gtest.h>
#include <unistd.h>

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <torch/torch.h>
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

std::string onednn_isa();

// onednn_isa() runs this program again, with ONEDNN_VERBOSE, as far as this test alone.
TEST(Fingerprint, FindsTheInstructionSetInOneDnnsLog) {
  if (std::getenv("ONEDNN_VERBOSE") == nullptr) {
    EXPECT_NE(onednn_isa(), "unknown");
  } else {
    torch::conv2d(torch::zeros({16, 3, 32, 32}), torch::zeros({8, 3, 5, 5}));
  }
}

// oneDNN tells its choice only in its log, which it writes when ONEDNN_VERBOSE was set at its
// start.
std::string onednn_isa() {
  static const std::string isa = [] {
    char self[PATH_MAX] = "";
    if (readlink("/proc/self/exe", self, sizeof self - 1) < 0) {
      return std::string("unknown");
    }
    std::string command = "ONEDNN_VERBOSE=1 '" + std::string(self) +
                          "' --gtest_filter=Fingerprint.FindsTheInstructionSetInOneDnnsLog "
                          "--gtest_output= 2> /dev/null";
    FILE* child = popen(command.c_str(), "r");
    if (child == nullptr) {
      return std::string("unknown");
    }
    std::string log;
    char buffer[4096];
    for (size_t count = 0; (count = std::fread(buffer, 1, sizeof buffer, child)) > 0;) {
      log.append(buffer, count);
    }
    pclose(child);
    const std::string key = "cpu,isa:";
    size_t begin = log.find(key);
    if (begin == std::string::npos) {
      return std::string("unknown");
    }
    begin += key.size();
    return strip(log.substr(begin, log.find('\n', begin) - begin));
  }();
  return isa;
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
          {"onednn_isa", onednn_isa()},
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
