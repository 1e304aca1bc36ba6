#pragma once
// Which symbols leave the shared library.

#if defined(TORCHAMP_STATIC)
#define TORCHAMP_API
#else
#define TORCHAMP_API __attribute__((visibility("default")))
#endif
