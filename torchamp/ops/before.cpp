#include "torchamp/ops/before.h"

namespace torchamp::ops::detail {
namespace {

// LibTorch 2.11 hands the kernel out in a wrapper that calls it boxed alone, at the cost of half a
// microsecond for every float32 call. Explicit instantiations may name private members.
template <auto member>
struct KernelOf {
  friend const c10::KernelFunction& kernel_of(const c10::SafeKernelFunction& safe) {
    return safe.*member;
  }
};
const c10::KernelFunction& kernel_of(const c10::SafeKernelFunction& safe);
template struct KernelOf<&c10::SafeKernelFunction::kernel_>;

}  // namespace

void Before::take(const c10::OperatorHandle& op, c10::DispatchKey key) {
  if (op_.has_value()) return;
  kernel_ = kernel_of(op.getComputedKernelForDispatchKey(key));
  op_.emplace(op);
}

}  // namespace torchamp::ops::detail
