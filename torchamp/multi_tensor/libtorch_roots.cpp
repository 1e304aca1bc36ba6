// LibTorch's square root for kernels. at::sqrt is MKL's where LibTorch has MKL, and MKL's is not
// correctly rounded on every CPU; an optimizer that is to give Python's bits must use the same.

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include <ATen/ops/from_blob.h>
#include <ATen/ops/sqrt.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "torchamp/multi_tensor/fused_step.h"

// MKL's functions, which libtorch_cpu exports; null in a LibTorch without MKL.
extern "C" {
__attribute__((weak)) void vmsSqrt(int count, const float* x, float* root, int64_t mode);
__attribute__((weak)) int MKL_Set_Num_Threads_Local(int num_threads);
__attribute__((weak)) void vmdSqrt(int count, const double* x, double* root, int64_t mode);
}

namespace torchamp::multi_tensor {
namespace {

// High accuracy, subnormals kept, no error handling: as ATen calls them.
constexpr int64_t kMklMode = 0x2 | 0x00140000 | 0x00000100;

// Once at::set_num_threads() was called, MKL starts threads of its own even for one block inside of
// a parallel region, which takes three times as long as the roots. While this lives, it does not.
class OneMklThread {
 public:
  OneMklThread()
      : before_(MKL_Set_Num_Threads_Local != nullptr ? MKL_Set_Num_Threads_Local(1) : 0) {}
  ~OneMklThread() {
    if (MKL_Set_Num_Threads_Local != nullptr) MKL_Set_Num_Threads_Local(before_);
  }
  OneMklThread(const OneMklThread&) = delete;
  OneMklThread& operator=(const OneMklThread&) = delete;

 private:
  int before_;
};

void mkl_roots(int64_t count, float* x) {
  const OneMklThread alone;
  vmsSqrt(static_cast<int>(count), x, x, kMklMode);
}
void mkl_roots(int64_t count, double* x) {
  const OneMklThread alone;
  vmdSqrt(static_cast<int>(count), x, x, kMklMode);
}

template <typename T>
constexpr at::ScalarType dtype_of() {
  return sizeof(T) == 8 ? at::kDouble : at::kFloat;
}

// The operator itself; about 1 us a call, so the last choice.
template <typename T>
void operator_roots(int64_t count, T* x) {
  const c10::InferenceMode plain;
  at::Tensor values = at::from_blob(x, {count}, at::TensorOptions().dtype(dtype_of<T>()));
  at::sqrt_out(values, values);
}

template <typename T>
std::vector<T> samples() {
  // Several per binade over the range of second moments.
  std::vector<T> values;
  for (int i = 0; i < 4096; ++i) {
    values.push_back(std::ldexp(static_cast<T>(1.0 + i * 0.000244140625 * 0.999), i % 101 - 80));
  }
  return values;
}

// Whether the kernels' own estimated roots have LibTorch's bits: 2^18 numbers over all exponents,
// 0 and inf among them. (A test looks at all from 0 to inf.)
bool has_bits_of_estimate() {
  std::vector<float> libtorch;
  libtorch.reserve(1 << 18);
  for (uint32_t i = 0; i < 1 << 18; ++i) {
    const uint32_t bits = i * 8161;  // up to 0x7F8xxxxx; odd, so the last bits vary too
    libtorch.push_back(std::bit_cast<float>(std::min(bits, 0x7F800000U)));
  }
  std::vector<float> estimated = libtorch;
  operator_roots(static_cast<int64_t>(libtorch.size()), libtorch.data());
  kernels::cpu_table().estimated_roots(static_cast<int64_t>(estimated.size()), estimated.data());
  return libtorch == estimated;
}

template <typename T>
void (*choose(bool has_mkl))(int64_t, T*) {
  std::vector<T> libtorch = samples<T>(), ieee = libtorch, mkl = libtorch;
  operator_roots(static_cast<int64_t>(libtorch.size()), libtorch.data());
  std::transform(ieee.begin(), ieee.end(), ieee.begin(), [](T x) { return std::sqrt(x); });
  if (libtorch == ieee) return nullptr;
  if (has_mkl) {
    mkl_roots(static_cast<int64_t>(mkl.size()), mkl.data());
    if (libtorch == mkl) return &mkl_roots;
  }
  return &operator_roots<T>;
}

}  // namespace

kernels::RootFunctions libtorch_roots() {
  static const kernels::RootFunctions roots = [] {
    kernels::RootFunctions chosen;
    chosen.of_floats = choose<float>(vmsSqrt != nullptr);
    chosen.of_doubles = choose<double>(vmdSqrt != nullptr);
    chosen.floats_are_estimated = chosen.of_floats != nullptr && has_bits_of_estimate();
    return chosen;
  }();
  return roots;
}

}  // namespace torchamp::multi_tensor
