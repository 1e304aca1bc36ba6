#include "cli/kernels.h"

#include "torchamp/base/error.h"
#include "torchamp/multi_tensor/cpu_kernels.h"
#include "torchamp/ops/caching_allocator.h"
#include "torchamp/ops/choices.h"
#include "torchamp/ops/install.h"

namespace torchamp::cli {

void check_cpu_kernels() {
  if (const auto error = multi_tensor::cpu_kernels_error()) throw base::UsageError(*error);
  for (const std::string& error : {ops::environment_error(), ops::choices_environment_error(),
                                   ops::allocator_environment_error()}) {
    if (!error.empty()) throw base::UsageError(error);
  }
}

}  // namespace torchamp::cli
