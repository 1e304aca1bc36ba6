#pragma once
// TorchScript modules under autocast: makes one that LibTorch's script compiler would get wrong run
// like a module of C++ classes.

#include "torchamp/base/export.h"

namespace torch::jit {
struct Module;
}

namespace torchamp::amp {

/// A module that shares `module`'s parameters and buffers and casts as a C++ module does: in every
/// Autocast region that it is called in, and in backward.
///
/// LibTorch's script compiler writes the casts of the region into the compiled graph and keeps that
/// for later calls, whatever their dtype: after bf16, fp16 is served the casts to bf16, and
/// backward fails. The module returned here runs op by op through the dispatcher, without that
/// compiler's casts, fusions and derivatives, so it follows the region of each call. A traced
/// convolution, which LibTorch's CPU rules do not know by its name in traces, becomes conv1d,
/// conv2d, ... again.
///
/// Train and save either; they hold the same tensors. Attributes that are no tensors or modules are
/// copied.
///
/// Errors:  c10::Error when a method holds its own `with torch.autocast(...)`, which only the
/// script
///          compiler can read.
/// Source:  torch/csrc/jit/passes/autocast.cpp, for what is left out.
/// Example: tests/amp/script_module_test.cpp, docs/torchscript.md
TORCHAMP_API torch::jit::Module script_for_autocast(const torch::jit::Module& module);

}  // namespace torchamp::amp
