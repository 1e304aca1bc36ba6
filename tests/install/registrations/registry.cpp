#include "registry.h"

namespace registry {
namespace {

int total = 0;

}  // namespace

int add() { return ++total; }
int count() { return total; }

}  // namespace registry
