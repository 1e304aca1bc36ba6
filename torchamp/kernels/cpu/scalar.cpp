// The table in plain C++: runs on every CPU and is what the others are compared with.

#include "torchamp/kernels/convert.h"
#include "torchamp/kernels/cpu/lane_scalar.h"
#include "torchamp/kernels/cpu/table.inl.h"

namespace torchamp::kernels {
namespace {
bool runs_everywhere() { return true; }
}  // namespace
extern const KernelTable scalar_table;
constinit const KernelTable scalar_table = make_table("scalar", runs_everywhere);
}  // namespace torchamp::kernels
