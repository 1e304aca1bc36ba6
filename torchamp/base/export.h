#pragma once
// Which symbols leave the shared library; everything else is hidden.

#define TORCHAMP_API __attribute__((visibility("default")))
