#pragma once
// DropWarnings: LibTorch's warnings of this thread are not printed while it lives.

#include <c10/util/Exception.h>

namespace torchamp::testing {

class DropWarnings : public c10::WarningHandler {
 public:
  DropWarnings() : guard_(this) {}
  void process(const c10::Warning& /*warning*/) override {}

 private:
  c10::WarningUtils::WarningHandlerGuard guard_;
};

}  // namespace torchamp::testing
