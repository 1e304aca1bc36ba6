#include "torchamp/ops/fp16_arithmetic.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace torchamp::ops::detail {

#if defined(__x86_64__)
bool has_fp16_arithmetic() {
  static const bool has = [] {
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    return __builtin_cpu_supports("avx512f") != 0 &&  // and the system saves the registers
           __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && (edx & (1U << 23)) != 0;
  }();
  return has;
}
#else
bool has_fp16_arithmetic() { return true; }  // not tried there: LibTorch's kernels stay
#endif

}  // namespace torchamp::ops::detail
