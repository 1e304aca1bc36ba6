#include "cli/train.h"

#include <array>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <sys/ioctl.h>
#include <unistd.h>

#include <torch/torch.h>

#include "cli/device.h"
#include "cli/error_text.h"
#include "cli/kernels.h"
#include "cli/memory.h"
#include "cli/signals.h"
#include "cli/train_options.h"
#include "torchamp/base/error.h"
#include "torchamp/base/words.h"
#include "torchamp/checkpoint/checkpoint.h"
#include "torchamp/checkpoint/checkpoint_manager.h"
#include "torchamp/ops/choices.h"
#include "torchamp/ops/install.h"
#include "torchamp/train/data/bpe.h"
#include "torchamp/train/metrics_file.h"
#include "torchamp/train/progress.h"
#include "torchamp/train/trainer.h"

namespace torchamp::cli {
namespace {

struct ModelAndData {
  std::shared_ptr<models::Model> model;
  train::DatasetPair data;
};

// Sizes that a model refuses are the user's choice, not a failure while running.
std::shared_ptr<models::Model> checked_model(const std::string& name,
                                             const models::ModelOptions& options) {
  try {
    return models::make_model(name, options);
  } catch (const c10::ValueError& error) {
    throw base::UsageError(error.what_without_backtrace());
  }
}

train::DatasetPair open_data(const TrainOptions& options, const base::StateDict* state,
                             const models::Model* synthetic_for) {
  train::DataOptions data;
  data.name = *options.data;
  data.path = options.data_path;
  data.limit = options.limit.value_or(0);
  data.seed = static_cast<uint64_t>(options.seed);
  data.context = options.context.value_or(data.context);
  data.vocab_size = options.vocab_size.value_or(data.vocab_size);
  data.state = state;
  if (synthetic_for) {
    const models::InputSpec spec = synthetic_for->input_spec();
    data.synthetic.tokens = spec.is_text;
    if (spec.is_text) {
      data.context = spec.shape[0];
      data.vocab_size = spec.num_classes;
    } else {
      data.synthetic.shape = spec.shape;
      data.synthetic.num_classes = spec.num_classes;
    }
    data.synthetic.num_train = options.examples;
    data.synthetic.num_validation = std::max<int64_t>(1, options.examples / 4);
  }
  return train::open_dataset(data);
}

// Synthetic data take the shape that the model has; a model takes the shape that other data have.
ModelAndData make_model_and_data(const TrainOptions& options, const base::StateDict* state) {
  torch::manual_seed(static_cast<uint64_t>(options.seed));
  ModelAndData made;
  models::ModelOptions wanted = model_options(options);
  if (*options.data == "synthetic") {
    made.model = checked_model(options.model, wanted);
    made.data = open_data(options, state, made.model.get());
    return made;
  }
  if ((options.model == "gpt") != (*options.data == "text")) {
    throw base::UsageError("[--model] '" + options.model + "' cannot learn from --data " +
                           *options.data +
                           "; gpt takes text or synthetic, the others take images or synthetic.");
  }
  made.data = open_data(options, state, nullptr);
  const train::DatasetInfo& info = made.data.train->info();
  const models::ModelOptions fitted =
      models::options_for(info.input_shape, info.num_classes, info.is_text);
  wanted.num_classes = fitted.num_classes;
  wanted.in_features = fitted.in_features;
  wanted.in_channels = fitted.in_channels;
  wanted.image_size = fitted.image_size;
  wanted.vocab_size = fitted.vocab_size;
  wanted.context = fitted.context;
  made.model = checked_model(options.model, wanted);
  return made;
}

train::ProgressOptions progress_options(const TrainOptions& options, bool is_text) {
  train::ProgressOptions progress;
  progress.is_terminal = isatty(STDOUT_FILENO) != 0;
  winsize size = {};
  if (progress.is_terminal && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
    progress.width = size.ws_col;
  }
  progress.steps_a_line = options.log_every.value_or(0);
  progress.is_text = is_text;
  return progress;
}

std::string heading(const TrainOptions& options, const ModelAndData& made) {
  int64_t num_parameters = 0;
  for (const torch::Tensor& parameter : made.model->parameters())
    num_parameters += parameter.numel();
  std::string text =
      "Training " + options.model + " (" + base::counted(num_parameters, "parameter") + ") on " +
      base::counted(made.data.train->size(), "example") + " of " + *options.data + ", " +
      options.precision + ", " + options.optimizer + ", batch " + std::to_string(options.batch);
  if (options.accumulate > 1) text += " x " + std::to_string(options.accumulate);
  return text + ", " + options.device + " with " + base::counted(*options.threads, "thread") + ".";
}

// The checkpoint's folder is made, and what is no file refused, before hours of training.
void prepare_checkpoint(const TrainOptions& options) {
  if (options.checkpoint.empty()) return;
  const std::filesystem::path path(options.checkpoint);
  std::error_code error;
  if (path.has_parent_path()) std::filesystem::create_directories(path.parent_path(), error);
  const std::filesystem::path folder = path.has_parent_path() ? path.parent_path() : ".";
  if (std::filesystem::is_directory(path, error) || path.filename().empty()) {
    throw base::UsageError("[--checkpoint] '" + options.checkpoint +
                           "' is a folder; the name of a file is accepted.");
  }
  if (!std::filesystem::is_directory(folder, error) || access(folder.c_str(), W_OK) != 0) {
    throw base::UsageError("[--checkpoint] No file can be written in '" + folder.string() +
                           "'; a folder with write permission is accepted.");
  }
  try {
    checkpoint::check_can_save(path);
  } catch (const base::CheckpointError& failure) {
    throw base::UsageError(failure.what());
  }
}

// Two of them in one file would overwrite each other.
void check_files_differ(const TrainOptions& options) {
  namespace fs = std::filesystem;
  const std::array<std::pair<const char*, std::string>, 3> files = {
      {{"--checkpoint", options.checkpoint}, {"--csv", options.csv}, {"--json", options.json}}};
  std::error_code ignored;
  const auto place_of = [&](const std::string& name) {
    return fs::weakly_canonical(fs::absolute(name, ignored), ignored);
  };
  for (size_t i = 0; i < files.size(); ++i) {
    if (files[i].second.empty()) continue;
    const fs::path place = place_of(files[i].second);
    if (fs::exists(place, ignored) && !fs::is_regular_file(place, ignored)) continue;  // a device
    for (size_t k = i + 1; k < files.size(); ++k) {
      if (files[k].second.empty()) continue;
      const fs::path other = place_of(files[k].second);
      if (other != place && (i > 0 || !checkpoint::is_checkpoint_name(other, place))) continue;
      throw base::UsageError(std::string("[") + files[k].first + "] '" + files[k].second +
                             "' is the file of " + files[i].first +
                             " too; a file for each is accepted.");
    }
  }
}

// " after epoch 3 and step 48"; nothing where that cannot be read, which the comparison tells.
std::string position(const base::StateDict& checkpoint) {
  std::string text;
  base::Differences ignored;
  ignored.attempt([&] {
    const base::StateDict& state = checkpoint.at("train_state").to_dict();
    text = " after epoch " + std::to_string(state.at("epoch").to_int()) + " and step " +
           std::to_string(state.at("step").to_int());
  });
  return text;
}

struct LoadedCheckpoint {
  base::StateDict state;
  std::string message;  // where the run goes on, and why not from another file
};

// What the run is built from, read in full before any of it is used, so that its faults are told
// together; the Trainer compares the rest when the run is there.
void take_run(const base::StateDict& checkpoint, const CLI::App& command, TrainOptions& options) {
  base::Differences differences;
  const auto dict_of = [&](const char* part) {
    const base::Value& value = checkpoint.at(part);
    const auto* dict = std::get_if<base::StateDict>(&value.storage());
    if (dict == nullptr) {
      differences.add(std::string(part) + ": it is " + base::with_article(value.type_name()) +
                      ", not a dict");
    }
    return dict;
  };
  const auto add = [&](const std::string& part, const base::Differences& of_part) {
    if (!of_part.empty()) differences.add(part + ": " + of_part.text());
  };
  if (const base::StateDict* config = dict_of("config")) {
    base::Differences of_part;
    take_from_checkpoint(*config, command, of_part, options);
    add("config", of_part);
  }
  // Images and synthetic data have none; text has its tokenizer.
  if (const base::StateDict* data = dict_of("data_state"); data != nullptr && !data->empty()) {
    base::Differences of_part;
    of_part.attempt([&] { train::BytePairEncoding::from_state_dict(*data); });
    add("data_state", of_part);
  }
  dict_of("train_state");
  if (differences.empty()) return;
  throw base::CheckpointError(
      "[--resume] The run of '" + options.checkpoint +
      "' cannot be built again, and nothing was changed: " + differences.text() +
      (differences.text().ends_with('?') ? "" : ".") + " Was the file edited?");
}

LoadedCheckpoint load_checkpoint(const TrainOptions& options) {
  if (checkpoint::checkpoint_files(options.checkpoint).empty()) {
    throw base::UsageError("[--resume] '" + options.checkpoint +
                           "' does not exist; the --checkpoint of an earlier run is accepted.");
  }
  auto [good, state] = checkpoint::load_last_good(options.checkpoint);
  std::string missing;
  for (const char* key : {"config", "data_state", "train_state"}) {
    const base::Value* value = state.find(key);
    if (value != nullptr && !value->is_none()) continue;
    missing += (missing.empty() ? "'" : ", '") + std::string(key) + "'";
  }
  if (!missing.empty()) {
    throw base::CheckpointError("[--resume] '" + good.file.string() + "' has no entry " + missing +
                                "; a checkpoint of torchamp train is accepted. Was it saved by "
                                "another program?");
  }
  std::string message = "Resumed from '" + good.file.string() + "'";
  if (good.passed_over.empty()) {
    message += position(state) + ".";
  } else {
    const std::string where = position(state);
    message += ", " + good.reason + (where.empty() ? "" : ",") + where + ":";
    for (const auto& each : good.passed_over) message += " " + without_callers(each.reason);
  }
  return {std::move(state), std::move(message)};
}

// What a new run says of the checkpoints that an earlier one left at `path`; nothing without any.
std::string replaced_text(const std::filesystem::path& path) {
  const std::vector<std::filesystem::path> files = checkpoint::checkpoint_files(path);
  if (files.empty()) return "";
  const std::string names = ", but for names that this run writes too";
  if (files.front() != path) {
    return "'" + path.string() + "' is not there, but " +
           base::counted(files.size(), "checkpoint") + " of an earlier run " +
           (files.size() == 1 ? "is" : "are") + " beside it and " +
           (files.size() == 1 ? "stays" : "stay") + names + "; --resume goes on from the newest.";
  }
  const std::string text = "'" + path.string() +
                           "' holds an earlier run, which this one's first checkpoint replaces; "
                           "--resume goes on from it.";
  if (files.size() == 1) return text;
  return text +
         (files.size() == 2 ? " Its other checkpoint stays" : " Its other checkpoints stay") +
         " beside it" + names + ".";
}

// The line of an epoch, with what the allocator did until then.
std::string with_allocator(const std::string& line) {
  return line.substr(0, line.size() - 1) + ", \"allocator\": " + allocator_json().dump() + "}";
}

void run_train(TrainOptions options, const CLI::App& command) {
  check_cpu_kernels();
  install_stop_handlers();
  std::optional<base::StateDict> checkpoint;
  std::string resumed_from;
  const base::StateDict* data_state = nullptr;
  if (options.resume && !options.checkpoint.empty()) {
    LoadedCheckpoint loaded = load_checkpoint(options);
    checkpoint = std::move(loaded.state);
    resumed_from = std::move(loaded.message);
    take_run(*checkpoint, command, options);
    data_state = &checkpoint->at("data_state").to_dict();
    if (data_state->empty()) data_state = nullptr;
  }
  std::optional<ops::Installation> installation;
  if (options.ops == "on") installation.emplace();
  std::optional<ops::CachingAllocatorInstallation> allocator;  // before the model
  if (options.allocator == "on") allocator.emplace();
  resolve(options);
  if (options.print_config) {
    std::fputs(describe(options).c_str(), stdout);
    return;
  }
  check_files_differ(options);
  prepare_checkpoint(options);
  std::string replaced;  // what a new run does to an earlier one's files
  if (!options.resume && !options.checkpoint.empty()) {
    replaced = replaced_text(options.checkpoint);
  }
  ModelAndData made = make_model_and_data(options, data_state);
  train::Progress progress(stdout, progress_options(options, made.data.train->info().is_text));
  progress.on_message(heading(options, made));
  if (!replaced.empty()) progress.on_message(replaced);
  if (!resumed_from.empty()) progress.on_message(resumed_from);
  train::TrainerConfig config = trainer_config(options);
  if (config.precision == train::Precision::kFp16 && !train::has_fast_fp16(config.device)) {
    progress.on_message("fp16 has no fast path on this device: it will be slower than fp32.");
  }

  std::optional<train::MetricsFile> csv;
  std::optional<train::MetricsFile> json;
  train::TrainerCallbacks callbacks;
  callbacks.on_message = [&](const std::string& text) {
    progress.on_message(without_callers(text));
  };
  callbacks.on_step = [&](const train::StepMetrics& metrics) {
    if (csv) csv->write(train::to_csv(metrics));
    progress.on_step(metrics);
  };
  callbacks.on_epoch = [&](const train::EpochMetrics& metrics) {
    if (json) json->write(with_allocator(train::to_json(metrics)));
    progress.on_epoch(metrics);
  };
  callbacks.stop_signal = stop_signal;

  const auto model = made.model;
  train::TrainerParts parts;
  parts.module = model;
  parts.forward = [model](const torch::Tensor& input) { return model->forward(input); };
  parts.data = made.data;
  train::Trainer trainer(std::move(config), std::move(parts), callbacks);
  int64_t steps_kept = -1;
  int64_t epochs_kept = -1;
  if (checkpoint) {
    trainer.load_state_dict(*checkpoint);
    const base::StateDict& position = checkpoint->at("train_state").to_dict();
    epochs_kept = position.at("epoch").to_int();
    steps_kept = position.at("step").to_int();
    checkpoint.reset();
  }
  if (!options.csv.empty()) csv = train::MetricsFile::csv(options.csv, steps_kept);
  if (!options.json.empty()) json = train::MetricsFile::json_lines(options.json, epochs_kept);

  try {
    const train::RunSummary summary = trainer.run();
    if (summary.last_epoch && ops::caching_allocator_installed()) {
      progress.on_message(describe(ops::caching_allocator_statistics()));
    }
    const ops::ChoiceCount count = ops::count_choices();
    if (summary.last_epoch && count.all > 0 && options.ops_choices == "on") {
      progress.on_message(
          "Kernels were chosen for " + std::to_string(count.all) +
          " kinds of 16-bit calls, float32 ones for " +
          std::to_string(count.float32 + count.float32_channels_last) + ", channels_last for " +
          std::to_string(count.channels_last + count.float32_channels_last) +
          (options.checkpoint.empty() ? "."
                                      : "; info --choices " + options.checkpoint + " lists them."));
    }
    if (!summary.last_epoch) {
      progress.on_message("Nothing was left to do: " + std::to_string(summary.epochs) +
                          " epochs and " + std::to_string(summary.steps) +
                          " steps are done; more --epochs or --steps go on.");
    } else if (!options.checkpoint.empty()) {
      progress.on_message("The checkpoint is '" + options.checkpoint + "'.");
    }
  } catch (...) {
    try {
      progress.clear();
    } catch (const base::Error&) {  // the output is gone; the first error says so
    }
    throw;
  }
}

}  // namespace

void setup_train(CLI::App& app) {
  auto options = std::make_shared<TrainOptions>();
  CLI::App* command = app.add_subcommand(
      "train", "Train a model in fp32 or mixed precision, with checkpoints that resume exactly");
  add_train_options(*command, *options);
  command->callback([options, command] { run_train(*options, *command); });
}

}  // namespace torchamp::cli
