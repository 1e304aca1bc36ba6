// torchamp info from outside.

#include <algorithm>
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
  const bool fp16_is_slow = info()["matmul_speed_vs_fp32"]["fp16"] < 0.5;
  if (!fp16_is_slow) GTEST_SKIP() << "fp16 is not slow on this CPU";
  EXPECT_NE(info()["warning"].get<std::string>().find("fp16"), std::string::npos);
  const std::string table = run_command("info").out;
  const size_t first = table.find("warning: ");
  ASSERT_NE(first, std::string::npos) << table;
  EXPECT_EQ(table.find("warning: ", first + 1), std::string::npos) << table;
}

TEST(Info, TableNamesTheParts) {
  const std::string table = run_command("info").out;
  for (const char* part : {"TorchAmp", "LibTorch", "CPU", "features", "oneDNN", "threads", "use"}) {
    EXPECT_NE(table.find(part), std::string::npos) << part << " is missing in\n" << table;
  }
}

}  // namespace
}  // namespace torchamp::cli
