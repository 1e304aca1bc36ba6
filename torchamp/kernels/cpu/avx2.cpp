// The table for CPUs with AVX2, FMA and F16C; compiled for them, so nothing here may run before
// runs_here().

#include <cstdint>

#include "torchamp/kernels/cpu/lane_avx2.h"
#include "torchamp/kernels/cpu/table.inl.h"

namespace torchamp::kernels {
bool cpu_has_avx2();
extern const KernelTable avx2_table;
constinit const KernelTable avx2_table = make_table("avx2", cpu_has_avx2);
}  // namespace torchamp::kernels
