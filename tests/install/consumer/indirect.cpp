// Refers to no symbol of TorchAmp, yet all of it must be in the process: registrations live in
// objects like that.
#include <cstdio>

#include <dlfcn.h>

int middle();

int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    if (dlsym(RTLD_DEFAULT, argv[i]) == nullptr) {
      std::printf("%s was dropped by the linker\n", argv[i]);
      return 1;
    }
  }
  return middle();
}
