// Nothing but a static registrar: no symbol here is ever referred to.
#include "registry.h"

namespace {

[[maybe_unused]] const int registered = registry::add();

}  // namespace
