#pragma once
// The umbrella: every public header of TorchAmp. Includes only.

#include "torchamp/base/error.h"
#include "torchamp/base/state_dict.h"
#include "torchamp/base/version.h"
