#pragma once
// The options of torchamp train: their values, their help, and their form in a checkpoint.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "models/model.h"
#include "torchamp/base/loading.h"
#include "torchamp/base/state_dict.h"
#include "torchamp/train/config.h"
#include "torchamp/train/data/dataset.h"

namespace torchamp::cli {

/// As given, or with resolve() as used.
struct TrainOptions {
  std::string model = "cnn";
  std::vector<int64_t> hidden;
  std::optional<int64_t> image_size, context, vocab_size, d_model, layers, heads;

  std::optional<std::string> data;
  std::string data_path;
  std::optional<int64_t> limit;
  int64_t examples = 1024;

  std::string precision = "fp32";
  std::optional<std::string> validate_precision;
  bool master_weights = false;
  std::string scaler = "auto";
  double init_scale = 65536.0;
  int64_t growth_interval = 2000;
  int64_t max_skipped = 40;

  std::string optimizer = "adamw";
  std::optional<double> lr, weight_decay, clip;
  double momentum = 0.9;
  double ema = 0.0;
  std::optional<std::string> schedule;
  int64_t warmup_steps = 0;

  int64_t batch = 64;
  int64_t accumulate = 1;
  std::optional<int64_t> epochs, steps;
  int64_t seed = 0;
  std::optional<int64_t> threads;
  int64_t workers = 1;
  std::string device = "cpu";
  std::string layout = "auto";
  std::string ops = "on";
  std::string allocator = "on";
  std::string ops_choices = "on";

  int64_t checkpoint_every_steps = 0;
  int64_t keep_last = 1;
  bool keep_best = false;

  // Of this call alone; a checkpoint does not keep them.
  std::string checkpoint;
  bool resume = false;
  std::string csv;
  std::string json;
  std::optional<int64_t> log_every;
  bool print_config = false;
};

/// Adds the options to `command`, bound to `options`.
void add_train_options(CLI::App& command, TrainOptions& options);

/// What the run is made of, as the checkpoint's "config" keeps it; open values are left out.
base::StateDict to_state_dict(const TrainOptions& options);
/// Takes every value that `command` was not given from a checkpoint's "config"; what cannot be read
/// of it is added to `differences`.
///
/// Errors: CheckpointError when the checkpoint is of another model than the one asked for.
void take_from_checkpoint(const base::StateDict& config, const CLI::App& command,
                          base::Differences& differences, TrainOptions& options);

/// Checks every value and fills in what was left open, "auto" included.
///
/// Errors: UsageError, one sentence, naming the option.
void resolve(TrainOptions& options);

/// "name = value" lines of everything, for --print-config.
std::string describe(const TrainOptions& options);

models::ModelOptions model_options(const TrainOptions& options);
train::TrainerConfig trainer_config(const TrainOptions& options);

}  // namespace torchamp::cli
