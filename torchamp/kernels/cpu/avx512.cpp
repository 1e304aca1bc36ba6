// The table for CPUs with AVX-512; compiled for them, so nothing here may run before runs_here().

#include <cstdint>

#include "torchamp/kernels/cpu/lane_avx512.h"
#include "torchamp/kernels/cpu/table.inl.h"

namespace torchamp::kernels {
bool cpu_has_avx512();
extern const KernelTable avx512_table;
constinit const KernelTable avx512_table = make_table("avx512", cpu_has_avx512);
}  // namespace torchamp::kernels
