#include "cli/kernels.h"

#include "torchamp/base/error.h"
#include "torchamp/multi_tensor/cpu_kernels.h"

namespace torchamp::cli {

void check_cpu_kernels() {
  if (const auto error = multi_tensor::cpu_kernels_error()) throw base::UsageError(*error);
}

}  // namespace torchamp::cli
