#pragma once
// FusedOptions: what TorchAmp's optimizers can do beyond LibTorch's options of the same name.

#include <cstdint>
#include <optional>

namespace torchamp::optim {

/// How a bfloat16 or float16 parameter is updated.
enum class LowPrecisionWeights {
  kMaster,      ///< the optimizer keeps the rest of a float32 weight (to_low_precision)
  kStochastic,  ///< bfloat16 alone, rounded up or down by chance; float16 is refused
  kPlain,       ///< rounded to nearest, as Python's fused optimizers do; small updates are lost
};

/// How momentum buffers and moments are kept.
enum class Moments {
  kFloat32,   ///< float32 (float64 parameters: float64)
  kBFloat16,  ///< bfloat16, rounded by chance
  k8Bit,      ///< 8 bits and a float32 for each block of 256, rounded by chance
};

/// Which square root AdamW and Adam use on a CPU.
enum class Roots {
  /// LibTorch's own at::sqrt: the bits of Python's optimizers with foreach=False. Where that is a
  /// vendor library's root (MKL on AMD), it is one unit in the last place off at times.
  kLibTorch,
  kIeee,  ///< correctly rounded, the CPU's instruction
};

struct FusedOptions {
  /// Gradients are clipped to this L2 norm inside of step(); absent: not.
  std::optional<double> max_grad_norm = std::nullopt;
  /// step() leaves gradients undefined instead of writing the unscaled, clipped values back.
  bool consume_gradients = false;
  LowPrecisionWeights low_precision_weights = LowPrecisionWeights::kMaster;
  Moments moments = Moments::kFloat32;
  Roots roots = Roots::kLibTorch;
  uint64_t seed = 0;  ///< of what is rounded by chance
};

}  // namespace torchamp::optim
