#include "torchamp/kernels/cpu/attention.h"

#include <string_view>

#include "torchamp/kernels/cpu/table.h"

namespace torchamp::kernels {

#if defined(__x86_64__)
extern const AttentionKernels attention_avx512_bf16;

const AttentionKernels* attention_kernels() {
  static const bool runs_here = __builtin_cpu_supports("avx512bf16") != 0;
  return runs_here && cpu_table().name == std::string_view("avx512") ? &attention_avx512_bf16
                                                                     : nullptr;
}
#else
const AttentionKernels* attention_kernels() { return nullptr; }
#endif

}  // namespace torchamp::kernels
