#pragma once
// QuietWarnings: LibTorch's warnings dropped while it lives. Internal.

#include <c10/util/Exception.h>

namespace torchamp::base {

/// Drops the warnings of the calling thread. LibTorch gives some of them once a process, that of an
/// overridden kernel among them: it stays unspent, for those who override one by mistake.
class QuietWarnings final : public c10::WarningHandler {
 public:
  QuietWarnings() : always_(true), handler_(this) {}
  void process(const c10::Warning& /*warning*/) override {}

 private:
  c10::WarningUtils::WarnAlways always_;
  c10::WarningUtils::WarningHandlerGuard handler_;
};

}  // namespace torchamp::base
