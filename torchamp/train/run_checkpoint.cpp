#include "torchamp/train/run_checkpoint.h"

#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/isnan.h>
#include <torch/nn/module.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include "torchamp/base/error.h"
#include "torchamp/base/version.h"
#include "torchamp/multi_tensor/device_read.h"
#include "torchamp/ops/choices.h"
#include "torchamp/optim/low_precision.h"
#include "torchamp/optim/state.h"
#include "torchamp/train/machine.h"
#include "torchamp/train/rng_state.h"

namespace torchamp::train {
namespace {

bool is_within_epoch(const RunState& state) { return state.next_batch > 0; }

void check_fits(const RunState& saved, const RunState& now,
                const std::function<void(const std::string&)>& say) {
  if (saved.optimizer != now.optimizer) {
    throw base::CheckpointError("[resume] The checkpoint holds the state of " + saved.optimizer +
                                ", but this run uses " + now.optimizer +
                                "; the same optimizer is accepted. Was --optimizer changed?");
  }
  if (saved.order != now.order) {
    const std::string text =
        "the data were " + to_string(saved.order) + " and are " + to_string(now.order);
    if (is_within_epoch(saved)) {
      throw base::CheckpointError("[resume] In the middle of epoch " +
                                  std::to_string(saved.epoch + 1) + " " + text +
                                  "; the same are accepted until the epoch ends.");
    }
    say("Resumed with other data: " + text + ".");
  }
  if (saved.precision != now.precision) {
    say("Resumed in " + now.precision + "; the checkpoint was written in " + saved.precision + ".");
  }
}

base::StateDict ops_choices_state() {
  base::StateDict state = ops::choices_state_dict();
  state.set("cpu", cpu_name());
  return state;
}

// The kernels that the run had go on, so that it computes the same bits; on another CPU it does not
// anyway, and what is fast is another question there.
void load_ops_choices(const base::StateDict& state,
                      const std::function<void(const std::string&)>& say) {
  const std::string& cpu = state.at("cpu").to_string("cpu");
  if (cpu == cpu_name()) {
    ops::load_choices_state_dict(state);
  } else if (!state.at("choices").to_items("choices").empty()) {
    say("The checkpoint's kernels were chosen on another CPU (" + base::printable(cpu) +
        "); they are chosen anew.");
  }
}

// The flags of a module's tensors, read with one wait for the device.
std::vector<double> read_flags(const std::vector<at::Tensor>& flags) {
  return flags.empty() ? std::vector<double>() : multi_tensor::DeviceRead(flags).get();
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
  checkpoint.set("loss", is_within_epoch(state) ? state.mean_loss() : state.last_train_loss);
  checkpoint.set("lr_scheduler_state_dict", parts.schedule.state_dict());
  checkpoint.set("rng_state", rng_state_dict());
  checkpoint.set("train_state", to_state_dict(state));
  checkpoint.set("data_state", parts.data_state);
  checkpoint.set("ops_choices", ops_choices_state());
  checkpoint.set("config", parts.config.metadata);
  checkpoint.set("torchamp_version", TORCHAMP_VERSION);
  return checkpoint;
}

void load_checkpoint(const base::StateDict& checkpoint, const CheckpointParts& parts,
                     const std::function<void(const std::string&)>& say) {
  RunState saved = run_state_from(checkpoint.at("train_state").to_dict("train_state"));
  check_fits(saved, parts.state, say);
  // Files of earlier versions have no such entry.
  const base::Value* choices = checkpoint.find("ops_choices");
  if (choices != nullptr && parts.config.ops_choices) {
    load_ops_choices(choices->to_dict("ops_choices"), say);
  }
  optim::load_full_state_dict(parts.module,
                              checkpoint.at("model_state_dict").to_dict("model_state_dict"));
  optim::load_optimizer_state_dict(
      parts.optimizer, checkpoint.at("optimizer_state_dict").to_dict("optimizer_state_dict"));
  const base::StateDict& scaler = checkpoint.at("scaler_state_dict").to_dict("scaler_state_dict");
  if (parts.scaler.is_enabled() && !scaler.empty()) parts.scaler.load_state_dict(scaler);
  if (const base::Value* history = checkpoint.find("scaler_history")) {
    parts.scaler.load_history_state_dict(history->to_dict("scaler_history"));
  }
  parts.schedule.load_state_dict(
      checkpoint.at("lr_scheduler_state_dict").to_dict("lr_scheduler_state_dict"));
  load_rng_state_dict(checkpoint.at("rng_state").to_dict("rng_state"));
  saved.order = parts.state.order;
  saved.precision = parts.state.precision;
  parts.state = std::move(saved);
}

std::string optimizer_name(const torch::optim::Optimizer& optimizer) {
  if (dynamic_cast<const torch::optim::AdamW*>(&optimizer)) return "AdamW";
  if (dynamic_cast<const torch::optim::Adam*>(&optimizer)) return "Adam";
  if (dynamic_cast<const torch::optim::SGD*>(&optimizer)) return "SGD";
  return "custom";
}

void check_is_finite(const torch::nn::Module& module, const std::filesystem::path& path) {
  const at::NoGradGuard no_grad;
  std::vector<std::string> names;
  std::vector<at::Tensor> is_good;
  for (const auto& item : module.named_parameters()) {
    if (item.value().numel() == 0) continue;
    names.push_back(item.key());
    is_good.push_back(at::isfinite(item.value()).all());
  }
  for (const auto& item : module.named_buffers()) {
    if (!item.value().is_floating_point() || item.value().numel() == 0) continue;
    names.push_back(item.key());
    is_good.push_back(at::isnan(item.value()).any().logical_not());
  }
  const std::vector<double> flags = read_flags(is_good);
  for (size_t i = 0; i < flags.size(); ++i) {
    if (flags[i] != 0.0) continue;
    throw base::DivergedError(
        "[train] '" + names[i] + "' holds values that are not finite, so '" + path.string() +
        "' was not written and keeps what it held. Try a lower --lr, a longer "
        "--warmup-steps or --clip 1.0.");
  }
}

}  // namespace torchamp::train
