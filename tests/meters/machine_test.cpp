#include "torchamp/train/machine.h"

#include <fstream>
#include <sstream>
#include <string>

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "torchamp/base/error.h"

namespace torchamp::train {
namespace {

// The words of a CPU that has everything, by bit numbers of Intel's manual (vol. 2A, CPUID).
CpuidWords everything() {
  return {.leaf1_ecx = 1u << 27,
          .leaf7_ebx = (1u << 5) | (1u << 16),
          .leaf7_edx = (1u << 22) | (1u << 23) | (1u << 24),
          .leaf7_1_eax = (1u << 5) | (1u << 21),
          .xcr0 = 0x600e7};
}

TEST(CpuFeatures, AreAllSeenWhereCpuAndSystemHaveThem) {
  const CpuFeatures cpu = decode_cpu_features(everything());
  EXPECT_TRUE(cpu.avx2 && cpu.avx512f && cpu.avx512_bf16 && cpu.avx512_fp16 && cpu.amx_bf16 &&
              cpu.amx_fp16);
}

TEST(CpuFeatures, NeedTheSystemToSaveTheirRegisters) {
  CpuidWords words = everything();
  words.xcr0 = 0x60000;  // tiles only, not even SSE
  CpuFeatures cpu = decode_cpu_features(words);
  EXPECT_FALSE(cpu.avx2 || cpu.avx512f || cpu.amx_bf16);
  words.xcr0 = 0x7;  // SSE and AVX
  cpu = decode_cpu_features(words);
  EXPECT_TRUE(cpu.avx2);
  EXPECT_FALSE(cpu.avx512f || cpu.avx512_bf16 || cpu.avx512_fp16 || cpu.amx_bf16 || cpu.amx_fp16);
  words.xcr0 = 0xe7;  // AVX-512 too, no tiles
  cpu = decode_cpu_features(words);
  EXPECT_TRUE(cpu.avx512f && cpu.avx512_bf16 && cpu.avx512_fp16);
  EXPECT_FALSE(cpu.amx_bf16 || cpu.amx_fp16);
}

TEST(CpuFeatures, EachHasItsOwnBit) {
  CpuidWords words = everything();
  words.leaf7_1_eax = 1u << 21;
  EXPECT_FALSE(decode_cpu_features(words).avx512_bf16);
  EXPECT_TRUE(decode_cpu_features(words).amx_fp16);
  words.leaf7_edx &= ~(1u << 23);
  EXPECT_FALSE(decode_cpu_features(words).avx512_fp16);
  EXPECT_TRUE(decode_cpu_features(words).amx_bf16);
  words.leaf7_edx &= ~(1u << 24);  // no tiles at all
  EXPECT_FALSE(decode_cpu_features(words).amx_bf16);
}

TEST(MachineInfo, AgreesWithTheKernelsListOfFeatures) {
  std::ifstream file("/proc/cpuinfo");
  std::string line, flags;
  while (flags.empty() && std::getline(file, line)) {
    if (line.starts_with("flags")) flags = line.substr(line.find(':') + 1) + " ";
  }
  if (flags.empty()) GTEST_SKIP() << "/proc/cpuinfo lists no flags here";
  const auto has = [&](const char* name) {
    return flags.find(std::string(" ") + name + " ") != std::string::npos;
  };
  const CpuFeatures cpu = machine_info().cpu;
  EXPECT_EQ(cpu.avx2, has("avx2"));
  EXPECT_EQ(cpu.avx512f, has("avx512f"));
  EXPECT_EQ(cpu.avx512_bf16, has("avx512_bf16"));
  EXPECT_EQ(cpu.avx512_fp16, has("avx512_fp16"));
  EXPECT_EQ(cpu.amx_bf16, has("amx_bf16"));
  EXPECT_TRUE(cpu.amx_fp16 || !has("amx_fp16"));  // older kernels do not list it
}

TEST(MachineInfo, TellsLibTorchsVersionAndThreads) {
  const MachineInfo info = machine_info();
  EXPECT_EQ(info.libtorch_version, TORCH_VERSION);
  EXPECT_EQ(info.threads, torch::get_num_threads());
  EXPECT_GE(info.num_cpus, 1);
  EXPECT_FALSE(info.cpu_name.empty());
  EXPECT_EQ(static_cast<size_t>(torch::cuda::device_count()), info.gpus.size());
}

TEST(RecommendByTimes, TakesAPrecisionOnlyWhenItIsClearlyFaster) {
  EXPECT_EQ(recommend_by_times({.fp32_ms = 10, .bf16_ms = 4, .fp16_ms = 500}), Precision::kBf16);
  EXPECT_EQ(recommend_by_times({.fp32_ms = 10, .bf16_ms = 9.5, .fp16_ms = 500}), Precision::kFp32);
  EXPECT_EQ(recommend_by_times({.fp32_ms = 10, .bf16_ms = 30, .fp16_ms = 500}), Precision::kFp32);
  EXPECT_EQ(recommend_by_times({.fp32_ms = 10, .bf16_ms = 30, .fp16_ms = 4}), Precision::kFp16);
  // 10 / 1.15 = 8.696
  EXPECT_EQ(recommend_by_times({.fp32_ms = 10, .bf16_ms = 8.7, .fp16_ms = 500}), Precision::kFp32);
  EXPECT_EQ(recommend_by_times({.fp32_ms = 10, .bf16_ms = 8.6, .fp16_ms = 500}), Precision::kBf16);
}

TEST(RecommendByTimes, PrefersBf16WhenBothAreEquallyFast) {
  EXPECT_EQ(recommend_by_times({.fp32_ms = 10, .bf16_ms = 3, .fp16_ms = 3}), Precision::kBf16);
}

TEST(RecommendByComputeCapability, FollowsTheGenerationOfTheGpu) {
  EXPECT_EQ(recommend_by_compute_capability(6, 1), Precision::kFp32);
  EXPECT_EQ(recommend_by_compute_capability(7, 0), Precision::kFp16);
  EXPECT_EQ(recommend_by_compute_capability(7, 5), Precision::kFp16);
  EXPECT_EQ(recommend_by_compute_capability(8, 0), Precision::kBf16);
  EXPECT_EQ(recommend_by_compute_capability(8, 9), Precision::kBf16);
  EXPECT_EQ(recommend_by_compute_capability(9, 0), Precision::kBf16);
  EXPECT_EQ(recommend_by_compute_capability(12, 0), Precision::kBf16);
}

TEST(RecommendedPrecision, OnACpuFollowsTheMeasurementAndLeavesTheThreadsAlone) {
  const int threads = torch::get_num_threads();
  const Precision precision = recommended_precision(c10::kCPU);
  EXPECT_EQ(torch::get_num_threads(), threads);
  const PrecisionTimes& times = measured_precisions();
  EXPECT_GT(times.fp32_ms, 0);
  EXPECT_GT(times.bf16_ms, 0);
  EXPECT_GT(times.fp16_ms, 0);
  EXPECT_EQ(precision, recommend_by_times(times));
  EXPECT_EQ(has_fast_fp16(c10::kCPU), times.fp16_ms <= 2 * times.fp32_ms);
}

TEST(Precision, IsReadAndWrittenByTheSameNames) {
  for (const char* name : {"fp32", "bf16", "fp16"}) {
    EXPECT_STREQ(format_precision(parse_precision(name)), name);
  }
  EXPECT_EQ(autocast_dtype(Precision::kFp32), std::nullopt);
  EXPECT_EQ(autocast_dtype(Precision::kBf16), torch::kBFloat16);
  EXPECT_EQ(autocast_dtype(Precision::kFp16), torch::kHalf);
}

TEST(Precision, OfAnUnknownNameIsAUsageErrorThatListsTheKnownOnes) {
  try {
    parse_precision("fp8");
    FAIL() << "fp8 was accepted";
  } catch (const base::UsageError& error) {
    EXPECT_STREQ(error.what(),
                 "[--precision] 'fp8' is not a precision; fp32, bf16 or fp16 is accepted.");
  }
}

}  // namespace
}  // namespace torchamp::train
