#include "torchamp/train/run_checkpoint.h"

#include <utility>
#include <vector>

#include <torch/nn/module.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include "torchamp/base/error.h"
#include "torchamp/base/version.h"
#include "torchamp/ops/choices.h"
#include "torchamp/optim/low_precision.h"
#include "torchamp/optim/state.h"
#include "torchamp/train/finite_check.h"
#include "torchamp/train/machine.h"
#include "torchamp/train/rng_state.h"

namespace torchamp::train {
namespace {

base::StateDict ops_choices_state() {
  base::StateDict state = ops::choices_state_dict();
  state.set("cpu", cpu_name());
  return state;
}

}  // namespace

base::StateDict make_checkpoint(const CheckpointParts& parts) {
  const RunState& state = parts.state;
  base::StateDict checkpoint;
  checkpoint.set("epoch", state.epoch);
  checkpoint.set("model_state_dict", optim::full_state_dict(parts.module));
  checkpoint.set("optimizer_state_dict", optim::optimizer_state_dict(parts.optimizer));
  checkpoint.set("scaler_state_dict", parts.scaler.state_dict());
  checkpoint.set("scaler_history", parts.scaler.history_state_dict());
  checkpoint.set("loss", state.is_within_epoch() ? state.mean_loss() : state.last_train_loss);
  checkpoint.set("lr_scheduler_state_dict", parts.schedule.state_dict());
  checkpoint.set("rng_state", rng_state_dict());
  checkpoint.set("train_state", to_state_dict(state));
  checkpoint.set("data_state", parts.data_state);
  if (parts.ema != nullptr) checkpoint.set("ema_state_dict", parts.ema->state_dict());
  checkpoint.set("ops_choices", ops_choices_state());
  checkpoint.set("config", parts.config.metadata);
  checkpoint.set("torchamp_version", TORCHAMP_VERSION);
  return checkpoint;
}

std::string optimizer_name(const torch::optim::Optimizer& optimizer) {
  if (dynamic_cast<const torch::optim::AdamW*>(&optimizer)) return "AdamW";
  if (dynamic_cast<const torch::optim::Adam*>(&optimizer)) return "Adam";
  if (dynamic_cast<const torch::optim::SGD*>(&optimizer)) return "SGD";
  return "custom";
}

void check_is_finite(const torch::nn::Module& module, const optim::Ema* ema,
                     const std::filesystem::path& path) {
  FiniteCheck check;
  for (const auto& item : module.named_parameters()) check.add(item.key(), item.value());
  for (const auto& item : module.named_buffers()) {
    check.add(item.key(), item.value(), FiniteCheck::Accepts::kInfinity);
  }
  if (ema != nullptr) {
    const base::StateDict averages = ema->state_dict();
    for (const auto& item : module.named_parameters()) {
      const base::Value* average = averages.find("module." + item.key());
      if (average != nullptr) check.add("module." + item.key(), average->to_tensor());
    }
  }
  const std::vector<std::string> names = check.bad_names();
  if (names.empty()) return;
  throw base::DivergedError("[train] '" + names.front() +
                            "' holds values that are not finite, so '" + path.string() +
                            "' was not written and keeps what it held. Try a lower --lr, a longer "
                            "--warmup-steps or --clip 1.0.");
}

}  // namespace torchamp::train
