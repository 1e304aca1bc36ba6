#include "torchamp/kernels/cpu/attention.h"

#include <string_view>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "torchamp/kernels/cpu/table.h"

namespace torchamp::kernels {

#if defined(__x86_64__)
extern const AttentionKernels attention_bf16_table;

namespace {

bool cpu_has_amx_bf16() {  // GCC 12 has no name for it
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && ((d >> 22U) & 1U) != 0;
}

}  // namespace

const AttentionKernels* attention_kernels() {
  static const bool runs_here = __builtin_cpu_supports("avx512bf16") != 0 && !cpu_has_amx_bf16();
  return runs_here && cpu_table().name == std::string_view("avx512") ? &attention_bf16_table
                                                                     : nullptr;
}
#else
const AttentionKernels* attention_kernels() { return nullptr; }
#endif

}  // namespace torchamp::kernels
