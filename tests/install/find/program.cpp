// Needs both libraries: a type's name from c10, a version text from torch_cpu.
#include <cstdio>
#include <string>

#include <ATen/Version.h>
#include <c10/core/ScalarType.h>

int main() {
  std::printf("%s\n", c10::toString(c10::kHalf));
  return at::get_openmp_version().empty() ? 1 : 0;
}
