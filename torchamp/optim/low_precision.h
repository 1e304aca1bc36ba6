#pragma once
// to_low_precision(): a model with 16-bit weights that trains as float32 weights under Autocast do.

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "torchamp/base/export.h"
#include "torchamp/base/loading.h"
#include "torchamp/base/state_dict.h"
#include "torchamp/optim/main_grad.h"

namespace torch::nn {
class Module;
}

namespace torchamp::optim {

/// What to_low_precision() converts beside its own choice. Each entry is the name of a parameter or
/// of a submodule, as in named_parameters() and named_modules(); `*` matches any characters, `?`
/// one. A submodule stands for everything below it.
struct LowPrecisionOptions {
  std::vector<std::string> keep = {};  ///< stays as it is: "head.weight", "layer4.*"
  std::vector<std::string> also = {};  ///< is converted: weights of modules of your own
};

/// Converts the parameters that Autocast would cast, in place, to `dtype`; the rest of each float32
/// value is kept for TorchAmp's optimizers. Returns the names of the parameters that changed.
///
/// Forward still runs under Autocast of the same dtype and gives the same bits as before. Converted
/// are weights of torch::nn::Linear, weights and biases of convolutions and transposed ones,
/// projections of MultiheadAttention, and weights and biases of RNN, LSTM, GRU and their cells;
/// those of derived classes too, whose forward should hand them to the same ops. Everything else
/// stays float32: norm layers, embeddings, biases of Linear (added, not cast, for 3-D input), what
/// modules of your own register, and what one owner of a shared parameter needs so. Name the
/// parameters that an fp32 island or a policy keeps in float32 in `keep`.
///
/// Parameters keep their handles, so optimizers may be built before or after; frozen ones are
/// converted too. 16-bit parameters get a master of their own value. Float64 and complex ones, as
/// in Autocast, stay. A second call changes what the first one did not.
///
/// Dtypes:  kBFloat16 or kHalf.
/// Devices: any. Move the module, and change its memory format, before.
/// Errors:  c10::ValueError, with nothing changed, for another dtype, for an entry of `keep` or
///          `also` that matches nothing (with the nearest names) or a parameter that is not
///          floating, and for parameters of which master weights cannot be kept.
/// Example: examples/master_weights.cpp
TORCHAMP_API std::vector<std::string> to_low_precision(torch::nn::Module& module,
                                                       at::ScalarType dtype,
                                                       const LowPrecisionOptions& options = {});

/// Makes every parameter that has a master float32 again, with the exact value. Returns their
/// names. Gradients become float32 too.
TORCHAMP_API std::vector<std::string> to_full_precision(torch::nn::Module& module);

/// Parameters and buffers as Python's state_dict() names and orders them, with the exact float32
/// value, a copy, of every weight that has a master. The other tensors are those of the module.
///
/// Source:  PyTorch torch/nn/modules/module.py, `state_dict`.
TORCHAMP_API base::StateDict full_state_dict(const torch::nn::Module& module);
/// Takes over such a dict, from a module with or without masters: weights, the rest of them, and
/// buffers. All or nothing; floating dtypes are converted into each other.
///
/// Errors:  CheckpointError listing every missing, unexpected, mis-shaped or mis-typed entry; the
///          module is unchanged.
TORCHAMP_API void load_full_state_dict(torch::nn::Module& module, const base::StateDict& state);
/// The first half of it: compares, and changes nothing.
TORCHAMP_API base::Loading prepare_full_state_dict(torch::nn::Module& module,
                                                   const base::StateDict& state);

/// The exact float32 value of one parameter: a copy of its master's, or its own.
TORCHAMP_API at::Tensor full_precision(const at::Tensor& parameter);
/// Sets one parameter, and its master if it has one, from float32 values of the same sizes.
///
/// Errors:  c10::ValueError for other sizes.
TORCHAMP_API void set_full_precision(const at::Tensor& parameter, const at::Tensor& values);

}  // namespace torchamp::optim
