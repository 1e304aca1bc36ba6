#pragma once
// What a checkpoint of a run holds, and how a run takes it up again.

#include <filesystem>
#include <functional>
#include <string>

#include "torchamp/amp/grad_scaler.h"
#include "torchamp/base/state_dict.h"
#include "torchamp/checkpoint/checkpoint_manager.h"
#include "torchamp/optim/ema.h"
#include "torchamp/optim/lr_schedule.h"
#include "torchamp/train/config.h"
#include "torchamp/train/run_state.h"

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace torchamp::train {

/// The parts of a run that have a state.
struct CheckpointParts {
  torch::nn::Module& module;
  torch::optim::Optimizer& optimizer;
  amp::GradScaler& scaler;
  optim::WarmupCosine& schedule;
  RunState& state;
  const TrainerConfig& config;
  const base::StateDict& data_state;
  optim::Ema* ema = nullptr;                             // null: the run averages no weights
  checkpoint::CheckpointManager* checkpoints = nullptr;  // null: the run writes no file
};

/// All but "checkpoint_manager", which the manager adds at save().
base::StateDict make_checkpoint(const CheckpointParts& parts);

/// Puts `checkpoint` into `parts`: all of it, or none.
///
/// Of a file that Python wrote, "model_state_dict" and "optimizer_state_dict" are needed; what else
/// is missing starts anew. `say` hears of that and of what is legally different from before.
///
/// Errors: CheckpointError listing, part by part, everything that does not fit; nothing has changed
///         then, and nothing was said.
void load_checkpoint(const base::StateDict& checkpoint, const CheckpointParts& parts,
                     const std::function<void(const std::string&)>& say);

/// "AdamW", "Adam", "SGD", or "custom".
std::string optimizer_name(const torch::optim::Optimizer& optimizer);

/// DivergedError naming the first parameter, buffer or average of a parameter that is not finite (a
/// buffer may hold inf, as masks do, but no NaN): such a run must not replace a good checkpoint.
/// Bad moments show in the parameters that their step moved. `ema` may be null.
void check_is_finite(const torch::nn::Module& module, const optim::Ema* ema,
                     const std::filesystem::path& path);

}  // namespace torchamp::train
