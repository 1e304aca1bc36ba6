#include "torchamp/train/trainer.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <limits>
#include <utility>

#include <torch/nn/module.h>

#include "torchamp/amp/grad_scaler.h"
#include "torchamp/base/error.h"
#include "torchamp/checkpoint/checkpoint_manager.h"
#include "torchamp/ops/caching_allocator.h"
#include "torchamp/ops/choices.h"
#include "torchamp/ops/install.h"
#include "torchamp/optim/adamw.h"
#include "torchamp/optim/ema.h"
#include "torchamp/optim/low_precision.h"
#include "torchamp/optim/lr_schedule.h"
#include "torchamp/optim/sgd.h"
#include "torchamp/train/data/loader.h"
#include "torchamp/train/evaluate.h"
#include "torchamp/train/memory_layout.h"
#include "torchamp/train/rng_state.h"
#include "torchamp/train/run_checkpoint.h"
#include "torchamp/train/run_state.h"
#include "torchamp/train/train_step.h"

namespace torchamp::train {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

int64_t divide_up(int64_t value, int64_t by) { return (value + by - 1) / by; }

std::vector<at::Tensor> trainable(const torch::nn::Module& module) {
  std::vector<at::Tensor> parameters;
  for (const at::Tensor& parameter : module.parameters()) {
    if (parameter.requires_grad()) parameters.push_back(parameter);
  }
  return parameters;
}

std::shared_ptr<torch::optim::Optimizer> make_optimizer(const TrainerConfig& config,
                                                        const torch::nn::Module& module) {
  const double lr = config.resolved_lr();
  const double decay = config.resolved_weight_decay();
  if (config.optimizer == OptimizerKind::kSgd) {
    return std::make_shared<optim::SGD>(
        trainable(module),
        torch::optim::SGDOptions(lr).momentum(config.momentum).weight_decay(decay));
  }
  return std::make_shared<optim::AdamW>(trainable(module),
                                        torch::optim::AdamWOptions(lr).weight_decay(decay));
}

amp::GradScaler make_scaler(const TrainerConfig& config) {
  amp::GradScalerOptions options;
  options.device = config.device.type();
  options.init_scale = config.init_scale;
  options.growth_interval = config.growth_interval;
  options.enabled = config.uses_scaler();
  options.warn_after_skips = 0;  // max_skipped_in_a_row ends the run instead
  return amp::GradScaler(options);
}

bool has_images(const torch::nn::Module& module) {
  const std::vector<at::Tensor> parameters = module.parameters();
  return std::any_of(parameters.begin(), parameters.end(),
                     [](const at::Tensor& parameter) { return parameter.dim() == 4; });
}

TrainerConfig resolve(TrainerConfig config, const TrainerParts& parts) {
  config.validate();
  TORCH_CHECK(parts.module && parts.forward && parts.loss && parts.data.train,
              "[Trainer] A part is missing; module, forward, loss and data.train are needed.");
  TORCH_CHECK_VALUE(!config.master_weights || !parts.optimizer ||
                        dynamic_cast<optim::FusedOptimizer*>(parts.optimizer.get()),
                    "[Trainer] master_weights is on and an optimizer came that keeps no masters; "
                    "one of torchamp::optim is accepted, or none, for the config's.");
  if (parts.data.train->size() < 1) {
    throw base::UsageError("[train] The training set '" + parts.data.train->info().name +
                           "' holds no example; one or more is accepted.");
  }
  if (config.keep_best && (!parts.data.validation || parts.data.validation->size() == 0)) {
    throw base::UsageError(
        "[train] keep-best is on and there are no validation data, whose loss says which "
        "checkpoint is the best; data with a validation part are accepted.");
  }
  config.lr = config.resolved_lr();
  config.weight_decay = config.resolved_weight_decay();
  config.validate_precision = config.resolved_validate_precision();
  config.scaler = config.uses_scaler() ? ScalerUse::kOn : ScalerUse::kOff;
  if (!config.epochs && !config.steps) config.epochs = 1;
  if (config.layout == Layout::kAuto) {
    config.layout = has_images(*parts.module) ? Layout::kChannelsLast : Layout::kContiguous;
  }
  return config;
}

std::string signal_name(int signal) {
  if (signal == SIGINT) return "SIGINT";
  if (signal == SIGTERM) return "SIGTERM";
  return "signal " + std::to_string(signal);
}

}  // namespace

struct Trainer::Run {
  Run(TrainerConfig raw_config, TrainerParts raw_parts, TrainerCallbacks raw_callbacks);

  RunSummary run();
  RunSummary train();
  void train_epoch();
  StepMetrics take_step(BatchStream& stream);
  void account(const StepResult& result, int64_t num_batches, StepMetrics& metrics);
  void tell_stall();
  EpochMetrics finish_epoch();
  [[noreturn]] void diverge(const StepResult& result) const;
  void save(std::optional<double> validation_loss = std::nullopt);
  void save_within_epoch();
  void stop_if_asked();
  void say(const std::string& text) const {
    if (callbacks.on_message) callbacks.on_message(text);
  }

  int64_t num_batches() const { return divide_up(parts.data.train->size(), config.batch); }
  int64_t steps_per_epoch() const { return divide_up(num_batches(), config.accumulate); }
  bool reached_steps() const { return config.steps && state.step >= *config.steps; }
  bool reached_epochs() const { return config.epochs && state.epoch >= *config.epochs; }
  optim::WarmupCosineOptions schedule_options() const;
  CheckpointParts checkpoint_parts() {
    return {*parts.module,
            *parts.optimizer,
            scaler,
            schedule,
            state,
            config,
            parts.data.state,
            ema ? &*ema : nullptr,
            checkpoints ? &*checkpoints : nullptr};
  }
  void load(const base::StateDict& dict);
  void let_config_rule(const base::StateDict& loaded);

  TrainerConfig config;
  std::optional<ops::Installation> installation;
  std::optional<ops::CachingAllocatorInstallation> allocator_installation;
  std::optional<ops::NoChoices> no_choices;
  bool makes_optimizer;
  TrainerParts parts;
  TrainerCallbacks callbacks;
  amp::GradScaler scaler;
  optim::WarmupCosine schedule;
  Placement placement;
  std::optional<optim::Ema> ema;
  RunState state;
  std::optional<checkpoint::CheckpointManager> checkpoints;
  int64_t first_step = 0;  // where this call of run() began
  double last_scale = 1.0;
  amp::ScalerHealth::Stall told_stall = amp::ScalerHealth::Stall::kNone;
  int64_t timed_examples = 0;  // of this epoch, in this process
  double timed_seconds = 0.0;
};

Trainer::Run::Run(TrainerConfig raw_config, TrainerParts raw_parts, TrainerCallbacks raw_callbacks)
    : config(resolve(std::move(raw_config), raw_parts)),
      installation(config.ops && config.device.is_cpu()
                       ? std::optional<ops::Installation>(std::in_place)
                       : std::nullopt),
      allocator_installation(config.caching_allocator && config.device.is_cpu()
                                 ? std::optional<ops::CachingAllocatorInstallation>(std::in_place)
                                 : std::nullopt),
      no_choices(config.ops_choices ? std::nullopt : std::optional<ops::NoChoices>(std::in_place)),
      makes_optimizer(!raw_parts.optimizer),
      parts([&] {
        // The optimizer holds the parameters as they are, so they are moved before it is made.
        raw_parts.module->to(config.device);
        if (config.layout == Layout::kChannelsLast) to_channels_last(*raw_parts.module);
        if (config.master_weights) {
          optim::to_low_precision(*raw_parts.module, *autocast_dtype(config.precision));
        }
        if (!raw_parts.optimizer) raw_parts.optimizer = make_optimizer(config, *raw_parts.module);
        return std::move(raw_parts);
      }()),
      callbacks(std::move(raw_callbacks)),
      scaler(make_scaler(config)),
      schedule(*parts.optimizer, schedule_options()),
      placement{config.device, config.layout == Layout::kChannelsLast} {
  const Dataset& data = *parts.data.train;
  state.order = {data.info().name, data.size(), config.batch, config.accumulate,
                 static_cast<int64_t>(config.seed)};
  state.precision = format_precision(config.precision);
  state.optimizer = optimizer_name(*parts.optimizer);
  if (config.ema_decay > 0.0) ema.emplace(*parts.module, optim::EmaOptions{config.ema_decay});
  if (scaler.is_enabled()) last_scale = scaler.get_scale();
  if (!config.checkpoint.empty()) {
    checkpoints.emplace(config.checkpoint, checkpoint::CheckpointManagerOptions{
                                               .keep_last = config.keep_last,
                                               .keep_best = config.keep_best,
                                               .background = config.checkpoint_in_background});
  }
}

optim::WarmupCosineOptions Trainer::Run::schedule_options() const {
  optim::WarmupCosineOptions options;
  options.warmup_steps = config.warmup_steps;
  if (config.schedule == ScheduleKind::kCosine) {
    options.total_steps = config.epochs ? *config.epochs * steps_per_epoch() : *config.steps;
  }
  return options;
}

RunSummary Trainer::Run::run() {
  try {
    const RunSummary summary = train();
    if (checkpoints) checkpoints->wait();
    return summary;
  } catch (...) {
    try {
      if (checkpoints) checkpoints->wait();
    } catch (const base::CheckpointError& error) {
      say(error.what());  // the first error is the one that ends the run
    }
    throw;
  }
}

RunSummary Trainer::Run::train() {
  RunSummary summary;
  first_step = state.step;
  if (config.precision == Precision::kFp16 && !scaler.is_enabled()) {
    say("fp16 without loss scaling: gradients below 6e-8 become 0; --scaler on keeps them.");
  }
  if (config.precision == Precision::kBf16 && scaler.is_enabled()) {
    say("bf16 with loss scaling: bf16 has float32's range and needs no scale; --scaler off.");
  }
  if (ema && parts.data.validation) {
    say("Validation uses the averaged weights, which keep " + shortest(config.ema_decay) +
        " of themselves at each step.");
  }
  bool is_saved = true;
  while (!reached_epochs() && (!reached_steps() || state.next_batch == num_batches())) {
    train_epoch();
    summary.last_epoch = finish_epoch();
    if (callbacks.on_epoch) callbacks.on_epoch(*summary.last_epoch);
    is_saved = false;
    if (!summary.last_epoch->is_complete) break;
    state.begin_next_epoch();
    save(summary.last_epoch->val_loss);
    is_saved = true;
  }
  if (!is_saved) save();
  summary.epochs = state.epoch;
  summary.steps = state.step;
  summary.skipped_steps = state.skipped;
  return summary;
}

// Trains from state.next_batch to the end of the epoch, or to the limit on steps.
void Trainer::Run::train_epoch() {
  timed_examples = 0;
  timed_seconds = 0.0;
  stop_if_asked();
  if (state.next_batch >= num_batches()) return;
  BatchStreamOptions options;
  options.batch_size = config.batch;
  options.shuffle = true;
  options.seed = config.seed;
  options.epoch = state.epoch;
  options.first_batch = state.next_batch;
  options.num_workers = config.workers;
  BatchStream stream(parts.data.train, options);
  parts.module->train();
  while (state.next_batch < num_batches() && !reached_steps()) {
    const StepMetrics metrics = take_step(stream);
    if (callbacks.on_step) callbacks.on_step(metrics);
    stop_if_asked();
    save_within_epoch();
  }
}

StepMetrics Trainer::Run::take_step(BatchStream& stream) {
  const auto start = Clock::now();
  const int64_t first = state.next_batch;
  Window window;
  window.num_batches = std::min(config.accumulate, num_batches() - first);
  window.num_examples =
      std::min(parts.data.train->size(), (first + window.num_batches) * config.batch) -
      first * config.batch;
  window.next = [&stream] {
    std::optional<Batch> batch = stream.next();
    TORCH_INTERNAL_ASSERT(batch, "[Trainer] The stream ended before the epoch did.");
    return std::move(*batch);
  };
  StepMetrics metrics;
  metrics.lr = schedule.lr();
  const StepResult result =
      train_step({*parts.module, parts.forward, parts.loss, *parts.optimizer, scaler},
                 {autocast_dtype(config.precision), config.clip, placement}, window);
  if (result.diverged) diverge(result);
  metrics.examples = window.num_examples;
  account(result, window.num_batches, metrics);
  const double seconds = seconds_since(start);
  timed_seconds += seconds;
  timed_examples += window.num_examples;
  metrics.examples_per_s = static_cast<double>(window.num_examples) / seconds;
  return metrics;
}

// Brings the run's state up to date with a step, and fills in what is reported of it.
void Trainer::Run::account(const StepResult& result, int64_t num_batches, StepMetrics& metrics) {
  state.last_lr = metrics.lr;
  state.next_batch += num_batches;
  ++state.step;
  last_scale = result.scale;
  if (result.skipped) {
    ++state.skipped;
    ++state.epoch_skipped;
    ++state.skipped_in_a_row;
  } else {
    state.skipped_in_a_row = 0;
    ++state.epoch_applied;
    state.epoch_examples += metrics.examples;
    state.epoch_loss_sum += result.loss * static_cast<double>(metrics.examples);
    state.epoch_norm_sum += result.grad_norm;
    schedule.step();
    if (ema) ema->update();
  }
  if (result.skipped) tell_stall();
  if (state.skipped_in_a_row >= config.max_skipped_in_a_row) diverge(result);
  metrics.epoch = state.epoch + 1;
  metrics.num_epochs = config.epochs.value_or(0);
  metrics.step = state.step;
  metrics.step_in_epoch = divide_up(state.next_batch, config.accumulate);
  metrics.steps_per_epoch = steps_per_epoch();
  metrics.loss = result.loss;
  metrics.mean_loss = state.mean_loss();
  metrics.scale = result.scale;
  metrics.grad_norm = result.grad_norm;
  metrics.skipped = result.skipped;
  metrics.skip_reason = result.reason;
  metrics.epoch_skipped = state.epoch_skipped;
}

// Says once when the search for a scale gets nowhere. Waits for the device, so not on good steps.
void Trainer::Run::tell_stall() {
  if (!scaler.is_enabled()) return;
  const amp::ScalerHealth health = scaler.health();
  if (health.is_stalled() && health.stall != told_stall) say(health.to_string());
  told_stall = health.stall;
}

EpochMetrics Trainer::Run::finish_epoch() {
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  EpochMetrics metrics;
  metrics.epoch = state.epoch + 1;
  metrics.num_epochs = config.epochs.value_or(0);
  metrics.step = state.step;
  metrics.is_complete = state.next_batch >= num_batches();
  metrics.is_text = parts.data.train->info().is_text;
  metrics.train_loss = state.mean_loss();
  metrics.examples_per_s =
      timed_seconds > 0.0 ? static_cast<double>(timed_examples) / timed_seconds : kNaN;
  if (scaler.is_enabled()) last_scale = scaler.get_scale();
  tell_stall();
  metrics.scale = last_scale;
  metrics.skipped_steps = state.epoch_skipped;
  metrics.lr = state.last_lr;
  metrics.grad_norm = state.mean_norm();
  metrics.val_loss = kNaN;
  metrics.val_accuracy = kNaN;
  if (!parts.data.validation || parts.data.validation->size() == 0) return metrics;

  EvaluateOptions options;
  options.batch = config.batch;
  options.workers = config.workers;
  options.dtype = autocast_dtype(config.resolved_validate_precision());
  options.placement = placement;
  options.stop = [this] { return callbacks.stop_signal && callbacks.stop_signal() != 0; };
  // Validation draws nothing that training would miss.
  const base::StateDict rng = rng_state_dict();
  std::optional<Evaluation> evaluation;
  {
    std::optional<optim::EmaWeights> averaged;
    if (ema) averaged.emplace(*ema);
    evaluation = evaluate(*parts.module, parts.forward, parts.loss, parts.data.validation, options);
  }
  load_rng_state_dict(rng);
  if (!evaluation) stop_if_asked();
  metrics.val_loss = evaluation->loss;
  metrics.val_accuracy = evaluation->accuracy;
  return metrics;
}

void Trainer::Run::diverge(const StepResult& result) const {
  std::string text;
  if (result.diverged) {
    text = "[train] Step " + std::to_string(state.step + 1) + " (epoch " +
           std::to_string(state.epoch + 1) + ") has loss " + shortest(result.loss) +
           " and gradient norm " + shortest(result.grad_norm) + "; finite numbers are needed.";
  } else {
    text = "[train] " + std::to_string(state.skipped_in_a_row) +
           " optimizer steps in a row were skipped, the last one (step " +
           std::to_string(state.step) + ", epoch " + std::to_string(state.epoch + 1) + ") for " +
           result.reason + " in the gradients at scale " + shortest(result.scale) + " and loss " +
           shortest(result.loss) + ".";
  }
  text += " Try a lower --lr (now " + shortest(*config.lr) + "), a longer --warmup-steps, ";
  text += config.clip ? "a lower --clip" : "--clip 1.0";
  if (config.precision == Precision::kFp16) text += ", --precision bf16";
  if (config.precision == Precision::kBf16) text += ", --precision fp32";
  text += ", or look for bad values in the data";
  if (!config.checkpoint.empty()) text += "; no checkpoint was written from here";
  throw base::DivergedError(text + ".");
}

void Trainer::Run::save(std::optional<double> validation_loss) {
  if (!checkpoints) return;
  check_is_finite(*parts.module, ema ? &*ema : nullptr, config.checkpoint);
  checkpoints->save(make_checkpoint(checkpoint_parts()), state.step, validation_loss);
}

void Trainer::Run::save_within_epoch() {
  const bool ends_here = state.next_batch >= num_batches() || reached_steps();  // saved there
  if (config.checkpoint_every_steps == 0 || ends_here) return;
  if (state.step % config.checkpoint_every_steps == 0) save();
}

void Trainer::Run::load(const base::StateDict& dict) {
  load_checkpoint(dict, checkpoint_parts(), [this](const std::string& text) { say(text); });
  let_config_rule(dict);
  if (scaler.is_enabled()) scaler.set_growth_interval(config.growth_interval);
  if (scaler.is_enabled()) last_scale = scaler.get_scale();
}

// What a loaded optimizer state brought along gives way to the config, whose schedule owns the
// rate; where they differ that is said.
void Trainer::Run::let_config_rule(const base::StateDict& loaded) {
  const std::vector<base::Value>& saved_groups =
      loaded.at("optimizer_state_dict").to_dict().at("param_groups").to_items();
  std::vector<std::string> told;
  const auto tell = [&](const std::string& name, double saved, double now) {
    if (saved == now) return;
    const std::string text = "The checkpoint's " + name + ", " + shortest(saved) +
                             ", gives way to this run's, " + shortest(now) + ".";
    if (std::find(told.begin(), told.end(), text) == told.end()) told.push_back(text);
  };
  auto& groups = parts.optimizer->param_groups();
  for (size_t i = 0; i < groups.size(); ++i) {
    auto& options = groups[i].options();
    tell("lr", saved_groups.at(i).to_dict().at("lr").to_double(), options.get_lr());
    if (!makes_optimizer) continue;
    if (auto* sgd = dynamic_cast<torch::optim::SGDOptions*>(&options)) {
      tell("weight_decay", sgd->weight_decay(), *config.weight_decay);
      tell("momentum", sgd->momentum(), config.momentum);
      sgd->momentum(config.momentum).weight_decay(*config.weight_decay);
    } else if (auto* adamw = dynamic_cast<torch::optim::AdamWOptions*>(&options)) {
      tell("weight_decay", adamw->weight_decay(), *config.weight_decay);
      adamw->weight_decay(*config.weight_decay);
    }
  }
  for (const std::string& text : told) say(text);  // last, as it may throw
}

void Trainer::Run::stop_if_asked() {
  const int signal = callbacks.stop_signal ? callbacks.stop_signal() : 0;
  if (signal == 0) return;
  std::string text = "[train] Stopped by " + signal_name(signal) + " after step " +
                     std::to_string(state.step) + " (epoch " + std::to_string(state.epoch + 1) +
                     "); ";
  if (config.checkpoint.empty()) {
    text += "nothing was written, since --checkpoint was not given.";
  } else if (state.step == first_step && std::filesystem::exists(config.checkpoint)) {
    // An untrained model must not take the place of an earlier run's.
    text += "no step was taken, and '" + config.checkpoint.string() + "' is as it was.";
  } else {
    save();
    checkpoints->wait();
    text += "the checkpoint is '" + config.checkpoint.string() + "', --resume goes on from it.";
  }
  throw base::Interrupted(text, signal);
}

Trainer::Trainer(TrainerConfig config, TrainerParts parts, TrainerCallbacks callbacks)
    : run_(std::make_unique<Run>(std::move(config), std::move(parts), std::move(callbacks))) {}
Trainer::Trainer(Trainer&&) noexcept = default;
Trainer& Trainer::operator=(Trainer&&) noexcept = default;
Trainer::~Trainer() = default;

RunSummary Trainer::run() { return run_->run(); }
base::StateDict Trainer::state_dict() const { return make_checkpoint(run_->checkpoint_parts()); }
void Trainer::load_state_dict(const base::StateDict& state) { run_->load(state); }
int64_t Trainer::steps_per_epoch() const { return run_->steps_per_epoch(); }
const TrainerConfig& Trainer::config() const { return run_->config; }

}  // namespace torchamp::train
