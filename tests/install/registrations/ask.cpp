// Fails unless the registry holds as many entries as the argument says.
#include <cstdio>
#include <cstdlib>

#include "registry.h"

int main(int argc, char** argv) {
  const int expected = argc > 1 ? std::atoi(argv[1]) : 1;
  std::printf("%d registered, %d expected\n", registry::count(), expected);
  return registry::count() == expected ? 0 : 1;
}
