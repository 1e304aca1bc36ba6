// torchamp info from outside.

#include <algorithm>
#include <cstdlib>
#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "cli_bench/run_command.h"

namespace torchamp::cli {
namespace {

using Json = nlohmann::json;

const Json& info() {
  static const Json json = Json::parse(run_command("info --json --threads 1").out);
  return json;
}

TEST(Info, JsonListsTheFeaturesThatMatter) {
  for (const char* name :
       {"avx2", "avx512f", "avx512_bf16", "avx512_fp16", "amx_bf16", "amx_fp16"}) {
    EXPECT_TRUE(info()["cpu_features"][name].is_boolean()) << name;
  }
  EXPECT_EQ(info()["threads"], 1);
  EXPECT_EQ(info()["libtorch"].get<std::string>().rfind("2.", 0), 0u);
  EXPECT_NE(info()["onednn_isa"], "unknown");
}

TEST(Info, ClaimsASpeedUpOnlyWhereItMeasuredOne) {
  const double bf16 = info()["matmul_speed_vs_fp32"]["bf16"];
  const double fp16 = info()["matmul_speed_vs_fp32"]["fp16"];
  const std::string use = info()["recommended_precision"]["cpu"];
  if (use == "bf16") {
    EXPECT_GE(bf16, 1.15);
  }
  if (use == "fp16") {
    EXPECT_GE(fp16, 1.15);
  }
  if (use == "fp32") {
    EXPECT_LT(std::max(bf16, fp16), 1.15);
  }
}

TEST(Info, WarnsOnceOfASlowTypeAndNamesFp16) {
  setenv("TORCHAMP_OPS", "off", 1);
  const Json plain = Json::parse(run_command("info --json --threads 1").out);
  const std::string table = run_command("info").out;
  unsetenv("TORCHAMP_OPS");
  const bool fp16_is_slow = plain["matmul_speed_vs_fp32"]["fp16"] < 0.5;
  if (!fp16_is_slow) GTEST_SKIP() << "fp16 is not slow on this CPU";
  EXPECT_NE(plain["warning"].get<std::string>().find("fp16"), std::string::npos);
  EXPECT_GT(info()["matmul_speed_vs_fp32"]["fp16"], plain["matmul_speed_vs_fp32"]["fp16"]);
  const size_t first = table.find("warning: ");
  ASSERT_NE(first, std::string::npos) << table;
  EXPECT_EQ(table.find("warning: ", first + 1), std::string::npos) << table;
}

// Runs the command with TORCHAMP_CPU set to `value`.
Output run_with_kernels(const std::string& value, const std::string& arguments) {
  setenv("TORCHAMP_CPU", value.c_str(), 1);
  Output output = run_command(arguments);
  unsetenv("TORCHAMP_CPU");
  return output;
}

TEST(Info, ListsTheCpuKernelsAndTheOneInUse) {
  const Json& kernels = info()["cpu_kernels"];
  EXPECT_EQ(kernels[0]["name"], "scalar");
  EXPECT_EQ(kernels[0]["runs_here"], true);
  std::string last_here;
  int used = 0;
  for (const Json& each : kernels) {
    if (each["runs_here"].get<bool>()) last_here = each["name"];
    used += each["in_use"].get<bool>() ? 1 : 0;
    // The feature list comes from elsewhere: LibTorch's own detection.
    if (each["name"] == "avx2") {
      EXPECT_EQ(each["runs_here"], info()["cpu_features"]["avx2"]);
    }
  }
  EXPECT_EQ(used, 1);
  for (const Json& each : kernels) EXPECT_EQ(each["in_use"], each["name"] == last_here);
  const Output forced = run_with_kernels("scalar", "info --json --threads 1");
  EXPECT_EQ(Json::parse(forced.out)["cpu_kernels"][0]["in_use"], true);
  EXPECT_NE(run_with_kernels("scalar", "info").out.find("TorchAmp kernels   scalar"),
            std::string::npos);
}

TEST(Info, RefusesKernelsThatDoNotRunHereInOneSentence) {
  for (const char* command : {"info", "info --json", "train --print-config", "bench --model mlp"}) {
    const Output output = run_with_kernels("sse\n9", command);
    EXPECT_EQ(output.exit_code, 2) << command << output.err;
    EXPECT_EQ(output.out, "") << command;
    EXPECT_NE(output.err.find("TORCHAMP_CPU is 'sse\\n9'"), std::string::npos) << output.err;
    EXPECT_NE(output.err.find("scalar"), std::string::npos) << output.err;
    EXPECT_EQ(output.err.find('\n'), output.err.size() - 1) << output.err;
  }
}

TEST(Info, TableNamesTheParts) {
  const std::string table = run_command("info").out;
  for (const char* part : {"TorchAmp", "LibTorch", "CPU", "features", "oneDNN", "threads", "use"}) {
    EXPECT_NE(table.find(part), std::string::npos) << part << " is missing in\n" << table;
  }
}

TEST(Info, ListsTheOpsThatAreReplaced) {
  const Json rows = Json::parse(run_command("info --ops --json").out);
  EXPECT_GE(rows.size(), 40U);
  for (const Json& row : rows) {
    EXPECT_TRUE(row["state"] == "replaced" || row["state"] == "not needed here") << row;
    EXPECT_FALSE(row["dtypes"].get<std::string>().empty());
    EXPECT_TRUE(row["other"].is_null());
  }
  const Output table = run_command("info --ops");
  EXPECT_NE(table.out.find("aten::avg_pool3d "), std::string::npos);
  EXPECT_EQ(table.err, "");  // LibTorch warns of overridden kernels, not of these
}

TEST(Info, TheEnvironmentSwitchesTheOpsOff) {
  setenv("TORCHAMP_OPS", "off", 1);
  for (const Json& row : Json::parse(run_command("info --ops --json").out)) {
    EXPECT_EQ(row["state"], "LibTorch's");
  }
  setenv("TORCHAMP_OPS", "maybe", 1);
  const Output refused = run_command("info --ops");
  unsetenv("TORCHAMP_OPS");
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_EQ(
      refused.err,
      "torchamp: [TORCHAMP_OPS] The environment variable TORCHAMP_OPS is 'maybe'; on, off, all "
      "or no value is accepted.\n");
}

}  // namespace
}  // namespace torchamp::cli
