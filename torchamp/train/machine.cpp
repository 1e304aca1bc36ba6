#include "torchamp/train/machine.h"

#include <algorithm>
#include <chrono>
#include <fstream>

#include <cpuid.h>
#include <dlfcn.h>
#include <sched.h>

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>
#include <torch/version.h>

#include "torchamp/base/error.h"

namespace torchamp::train {
namespace {

bool bit(uint64_t word, int index) { return ((word >> index) & 1) != 0; }

CpuidWords read_cpuid() {
  CpuidWords words;
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0) words.leaf1_ecx = ecx;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0) {
    words.leaf7_ebx = ebx;
    words.leaf7_edx = edx;
    const uint32_t last_subleaf = eax;
    if (last_subleaf >= 1 && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0) {
      words.leaf7_1_eax = eax;
    }
  }
  if (bit(words.leaf1_ecx, 27)) {  // OSXSAVE: xgetbv may be used
    uint32_t low = 0, high = 0;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    words.xcr0 = (static_cast<uint64_t>(high) << 32) | low;
  }
  return words;
}

std::string read_cpu_name() {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line)) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

int count_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 0;
}

int count_gpus() {
  return c10::impl::hasDeviceGuardImpl(c10::kCUDA)
             ? c10::impl::getDeviceGuardImpl(c10::kCUDA)->deviceCount()
             : 0;
}

// Name, compute capability and memory come from the driver's own library, which LibTorch has loaded
// by then: asking LibTorch for them takes CUDA's headers.
class CudaDriver {
 public:
  CudaDriver() : library_(dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL)) {
    if (library_ == nullptr) return;
    load(init_, "cuInit");
    load(get_, "cuDeviceGet");
    load(name_, "cuDeviceGetName");
    load(attribute_, "cuDeviceGetAttribute");
    load(memory_, "cuDeviceTotalMem_v2");
    ready_ = init_ && get_ && name_ && attribute_ && memory_ && init_(0) == 0;
  }
  ~CudaDriver() {
    if (library_ != nullptr) dlclose(library_);
  }
  CudaDriver(const CudaDriver&) = delete;
  CudaDriver& operator=(const CudaDriver&) = delete;

  GpuInfo describe(int index) const {
    GpuInfo info;
    info.name = "unknown";
    int device = 0;
    if (!ready_ || get_(&device, index) != 0) return info;
    char name[256] = {};
    size_t bytes = 0;
    if (name_(name, sizeof(name), device) == 0) info.name = name;
    attribute_(&info.compute_major, kComputeMajor, device);
    attribute_(&info.compute_minor, kComputeMinor, device);
    if (memory_(&bytes, device) == 0) info.memory_bytes = bytes;
    return info;
  }

 private:
  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR of the driver's interface.
  static constexpr int kComputeMajor = 75;
  static constexpr int kComputeMinor = 76;

  template <typename Function>
  void load(Function& function, const char* name) {
    function = reinterpret_cast<Function>(dlsym(library_, name));
  }

  void* library_;
  bool ready_ = false;
  int (*init_)(unsigned) = nullptr;
  int (*get_)(int*, int) = nullptr;
  int (*name_)(char*, int, int) = nullptr;
  int (*attribute_)(int*, int, int) = nullptr;
  int (*memory_)(size_t*, int) = nullptr;
};

// One linear layer as autocast runs it: cast, forward, both gradients, cast the weight's gradient.
struct LinearLayer {
  at::Tensor input, weight, grad;

  LinearLayer(int64_t rows, int64_t width)
      : input(at::ones({rows, width})),
        weight(at::ones({width, width})),
        grad(at::ones({rows, width})) {}

  double run_ms(at::ScalarType dtype) const {
    const auto begin = std::chrono::steady_clock::now();
    const at::Tensor x = input.to(dtype);
    const at::Tensor w = weight.to(dtype);
    const at::Tensor g = grad.to(dtype);
    const at::Tensor y = at::mm(x, w.t());
    const at::Tensor grad_x = at::mm(g, w);
    const at::Tensor grad_w = at::mm(g.t(), x).to(at::kFloat);
    const auto end = std::chrono::steady_clock::now();
    return std::chrono::duration<double, std::milli>(end - begin).count();
  }
};

// One thread while it lives: where other programs use the cores as well, several threads wait for
// each other longer than they compute, and the times tell about the scheduler.
class OneThread {
 public:
  OneThread() : before_(at::get_num_threads()) { at::set_num_threads(1); }
  ~OneThread() { at::set_num_threads(before_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_;
};

}  // namespace

const char* format_precision(Precision precision) {
  switch (precision) {
    case Precision::kFp32:
      return "fp32";
    case Precision::kBf16:
      return "bf16";
    case Precision::kFp16:
      return "fp16";
  }
  TORCH_INTERNAL_ASSERT(false, "unknown precision");
}

Precision parse_precision(const std::string& name) {
  if (name == "fp32") return Precision::kFp32;
  if (name == "bf16") return Precision::kBf16;
  if (name == "fp16") return Precision::kFp16;
  throw base::UsageError("[--precision] '" + name +
                         "' is not a precision; fp32, bf16 or fp16 is accepted.");
}

std::optional<at::ScalarType> autocast_dtype(Precision precision) {
  switch (precision) {
    case Precision::kFp32:
      return std::nullopt;
    case Precision::kBf16:
      return at::kBFloat16;
    case Precision::kFp16:
      return at::kHalf;
  }
  TORCH_INTERNAL_ASSERT(false, "unknown precision");
}

CpuFeatures decode_cpu_features(const CpuidWords& words) {
  constexpr uint64_t kYmm = 0x6;              // XCR0: SSE and AVX state
  constexpr uint64_t kZmm = kYmm | 0xe0;      // opmask, upper halves, upper registers
  constexpr uint64_t kTile = kYmm | 0x60000;  // tile configuration and tile data
  const bool ymm = (words.xcr0 & kYmm) == kYmm;
  const bool zmm = (words.xcr0 & kZmm) == kZmm && bit(words.leaf7_ebx, 16);
  const bool tile = (words.xcr0 & kTile) == kTile && bit(words.leaf7_edx, 24);
  return {.avx2 = ymm && bit(words.leaf7_ebx, 5),
          .avx512f = zmm,
          .avx512_bf16 = zmm && bit(words.leaf7_1_eax, 5),
          .avx512_fp16 = zmm && bit(words.leaf7_edx, 23),
          .amx_bf16 = tile && bit(words.leaf7_edx, 22),
          .amx_fp16 = tile && bit(words.leaf7_1_eax, 21)};
}

std::string cpu_name() { return read_cpu_name(); }

MachineInfo machine_info() {
  MachineInfo info;
  info.cpu_name = read_cpu_name();
  info.cpu = decode_cpu_features(read_cpuid());
  info.cpu_capability = at::get_cpu_capability();
  info.num_cpus = count_cpus();
  info.threads = at::get_num_threads();
  info.libtorch_version = TORCH_VERSION;
  info.onednn_version = at::get_mkldnn_version();
  info.cuda_linked = c10::impl::hasDeviceGuardImpl(c10::kCUDA);
  const int num_gpus = count_gpus();
  if (num_gpus > 0) {
    const CudaDriver driver;
    for (int i = 0; i < num_gpus; ++i) info.gpus.push_back(driver.describe(i));
  }
  return info;
}

PrecisionTimes measure_precisions() {
  const at::NoGradGuard no_grad;
  const OneThread one_thread;
  const at::ScalarType dtypes[] = {at::kFloat, at::kBFloat16, at::kHalf};
  // First a layer so small that even a path 200 times slower than fp32 takes well under a second.
  const LinearLayer small(64, 256);
  double small_ms[3];
  for (int i = 0; i < 3; ++i) {
    small.run_ms(dtypes[i]);  // oneDNN compiles its kernel in the first call
    small_ms[i] = std::min(small.run_ms(dtypes[i]), small.run_ms(dtypes[i]));
  }
  // Then one whose products take longer than its casts: 0.4 GFLOP.
  const LinearLayer layer(64, 1024);
  constexpr int kMinRounds = 3, kMaxRounds = 25;
  constexpr double kBudgetMs = 1000;
  constexpr double kHopeless = 4;  // times fp32: the large layer would only confirm it
  double best_ms[3] = {};
  double spent_ms = 0;
  bool measured[3] = {true, true, true};
  for (int i = 1; i < 3; ++i) measured[i] = small_ms[i] <= kHopeless * small_ms[0];
  for (int i = 0; i < 3; ++i) {
    if (measured[i]) spent_ms += layer.run_ms(dtypes[i]);  // warms up
  }
  for (int round = 0; round < kMaxRounds; ++round) {
    if (round >= kMinRounds && spent_ms > kBudgetMs) break;
    for (int i = 0; i < 3; ++i) {
      if (!measured[i]) continue;
      const double ms = layer.run_ms(dtypes[i]);
      best_ms[i] = round == 0 ? ms : std::min(best_ms[i], ms);
      spent_ms += ms;
    }
  }
  const auto result = [&](int i) {
    return measured[i] ? best_ms[i] : best_ms[0] * small_ms[i] / small_ms[0];
  };
  return {.fp32_ms = result(0), .bf16_ms = result(1), .fp16_ms = result(2)};
}

const PrecisionTimes& measured_precisions() {
  static const PrecisionTimes times = measure_precisions();
  return times;
}

Precision recommend_by_times(const PrecisionTimes& times) {
  const bool bf16_first = times.bf16_ms <= times.fp16_ms;
  const double best_ms = bf16_first ? times.bf16_ms : times.fp16_ms;
  if (best_ms * kClearlyFaster > times.fp32_ms) return Precision::kFp32;
  return bf16_first ? Precision::kBf16 : Precision::kFp16;
}

Precision recommend_by_compute_capability(int major, int /*minor*/) {
  if (major >= 8) return Precision::kBf16;
  return major == 7 ? Precision::kFp16 : Precision::kFp32;
}

Precision recommended_precision(c10::Device device) {
  if (!device.is_cuda()) return recommend_by_times(measured_precisions());
  const GpuInfo gpu = CudaDriver().describe(device.has_index() ? device.index() : 0);
  return recommend_by_compute_capability(gpu.compute_major, gpu.compute_minor);
}

bool has_fast_fp16(c10::Device device) {
  if (device.is_cuda()) {
    return CudaDriver().describe(device.has_index() ? device.index() : 0).compute_major >= 7;
  }
  const PrecisionTimes& times = measured_precisions();
  return times.fp16_ms <= 2 * times.fp32_ms;
}

}  // namespace torchamp::train
