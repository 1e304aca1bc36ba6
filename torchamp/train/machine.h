#pragma once
// What this machine can do, and which precision to use on it. Facts and one short measurement;
// nothing here prints, and nothing changes how LibTorch computes.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include "torchamp/base/export.h"

namespace torchamp::train {

/// The precision of a run: everything in fp32, or autocast to one of the 16-bit types.
enum class Precision { kFp32, kBf16, kFp16 };

/// "fp32", "bf16" or "fp16".
TORCHAMP_API const char* format_precision(Precision precision);

/// Reads "fp32", "bf16" or "fp16". UsageError for anything else.
TORCHAMP_API Precision parse_precision(const std::string& name);

/// The type that autocast computes in; nothing for fp32.
TORCHAMP_API std::optional<at::ScalarType> autocast_dtype(Precision precision);

/// The x86 features that decide how fast a 16-bit type is. True only where the operating system
/// saves the registers too.
struct CpuFeatures {
  bool avx2 = false;
  bool avx512f = false;
  bool avx512_bf16 = false;
  bool avx512_fp16 = false;
  bool amx_bf16 = false;
  bool amx_fp16 = false;
};

/// The CPUID words and the XCR0 register that CpuFeatures are read from.
struct CpuidWords {
  uint32_t leaf1_ecx = 0;
  uint32_t leaf7_ebx = 0;
  uint32_t leaf7_edx = 0;
  uint32_t leaf7_1_eax = 0;
  uint64_t xcr0 = 0;  // 0 where OSXSAVE is off
};

/// Source: Intel SDM vol. 2A, CPUID leaves 1 and 7; vol. 1, sec. 13.3 (XCR0).
TORCHAMP_API CpuFeatures decode_cpu_features(const CpuidWords& words);

struct GpuInfo {
  std::string name;
  int compute_major = 0;
  int compute_minor = 0;
  uint64_t memory_bytes = 0;
};

struct MachineInfo {
  std::string cpu_name;  // as the kernel reports it
  CpuFeatures cpu;
  std::string cpu_capability;  // what LibTorch's own kernels use, for example "AVX512"
  int num_cpus = 0;            // that this process may run on
  int threads = 0;             // that LibTorch computes with
  std::string libtorch_version;
  std::string onednn_version;
  bool cuda_linked = false;
  std::vector<GpuInfo> gpus;
};

TORCHAMP_API MachineInfo machine_info();
/// MachineInfo::cpu_name alone.
TORCHAMP_API std::string cpu_name();

/// Milliseconds of the matrix products of one linear layer (forward, both gradients, and the casts
/// that autocast adds), by precision, on one thread. The least of interleaved rounds: other
/// programs on the machine can only add to a time.
struct PrecisionTimes {
  double fp32_ms = 0;
  double bf16_ms = 0;
  double fp16_ms = 0;
};

/// Measures on the CPU, about a second; a precision far slower than fp32 gets one short try. Sets
/// LibTorch to one thread meanwhile, so other threads should not compute then.
TORCHAMP_API PrecisionTimes measure_precisions();

/// measure_precisions(), done once a process.
TORCHAMP_API const PrecisionTimes& measured_precisions();

/// A 16-bit type must be this much faster than fp32 to be recommended on a CPU: less than that is
/// lost again in the parts of a step that autocast leaves in fp32.
inline constexpr double kClearlyFaster = 1.15;

/// The rule for a CPU: the fastest type if it is clearly faster than fp32, else fp32. bf16 wins a
/// tie, since it needs no loss scaling.
TORCHAMP_API Precision recommend_by_times(const PrecisionTimes& times);

/// The rule for an NVIDIA GPU: 8.0 and later bf16, 7.x fp16, below fp32.
TORCHAMP_API Precision recommend_by_compute_capability(int major, int minor);

/// Which precision to use on `device`; what `--precision auto` means.
TORCHAMP_API Precision recommended_precision(c10::Device device);

/// False where fp16 runs at less than half of fp32's speed: CPUs without fp16 arithmetic, GPUs
/// before 7.0.
TORCHAMP_API bool has_fast_fp16(c10::Device device);

}  // namespace torchamp::train
