// The scaler of static_objects_test.cpp, in a translation unit of its own.

#include <torch/torch.h>

#include "torchamp/amp/grad_scaler.h"

namespace torchamp::test {

amp::GradScaler& static_scaler();
amp::GradScaler& static_scaler() {
  static amp::GradScaler scaler;
  return scaler;
}

}  // namespace torchamp::test
