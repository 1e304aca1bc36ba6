#include "cli/train_options.h"

#include <algorithm>
#include <limits>
#include <type_traits>

#include <torch/torch.h>

#include "cli/device.h"
#include "torchamp/base/error.h"
#include "torchamp/base/words.h"
#include "torchamp/train/machine.h"
#include "torchamp/train/metrics.h"

namespace torchamp::cli {
namespace {

template <typename T>
struct IsOptional : std::false_type {};
template <typename T>
struct IsOptional<std::optional<T>> : std::true_type {};

// The options that make the run, by name; `visit` is called with each and its value.
template <typename Options, typename Visit>
void for_each_option(Options& o, const Visit& visit) {
  visit("model", o.model);
  visit("hidden", o.hidden);
  visit("image-size", o.image_size);
  visit("context", o.context);
  visit("vocab-size", o.vocab_size);
  visit("d-model", o.d_model);
  visit("layers", o.layers);
  visit("heads", o.heads);
  visit("data", o.data);
  visit("data-path", o.data_path);
  visit("limit", o.limit);
  visit("examples", o.examples);
  visit("precision", o.precision);
  visit("validate-precision", o.validate_precision);
  visit("master-weights", o.master_weights);
  visit("scaler", o.scaler);
  visit("init-scale", o.init_scale);
  visit("growth-interval", o.growth_interval);
  visit("max-skipped", o.max_skipped);
  visit("optimizer", o.optimizer);
  visit("lr", o.lr);
  visit("weight-decay", o.weight_decay);
  visit("momentum", o.momentum);
  visit("clip", o.clip);
  visit("ema", o.ema);
  visit("schedule", o.schedule);
  visit("warmup-steps", o.warmup_steps);
  visit("batch", o.batch);
  visit("accumulate", o.accumulate);
  visit("epochs", o.epochs);
  visit("steps", o.steps);
  visit("seed", o.seed);
  visit("threads", o.threads);
  visit("workers", o.workers);
  visit("device", o.device);
  visit("layout", o.layout);
  visit("ops", o.ops);
  visit("allocator", o.allocator);
  visit("ops-choices", o.ops_choices);
  visit("checkpoint-every-steps", o.checkpoint_every_steps);
  visit("keep-last", o.keep_last);
  visit("keep-best", o.keep_best);
}

std::string text_of(const std::string& value) { return value; }
std::string text_of(bool value) { return value ? "true" : "false"; }
std::string text_of(int64_t value) { return std::to_string(value); }
std::string text_of(double value) { return train::shortest(value); }
std::string text_of(const std::vector<int64_t>& values) {
  std::string text;
  for (const int64_t value : values) text += (text.empty() ? "" : ",") + std::to_string(value);
  return text;
}
template <typename T>
std::string text_of(const std::optional<T>& value) {
  return value ? text_of(*value) : std::string();
}

base::Value value_of(const std::vector<int64_t>& values) {
  base::List list;
  for (const int64_t value : values) list.items.emplace_back(value);
  return list;
}
template <typename T>
base::Value value_of(const T& value) {
  return value;
}

void read(const base::Value& value, const char* name, std::string& out) {
  out = value.to_string(name);
}
void read(const base::Value& value, const char* name, bool& out) { out = value.to_bool(name); }
void read(const base::Value& value, const char* name, int64_t& out) { out = value.to_int(name); }
void read(const base::Value& value, const char* name, double& out) { out = value.to_double(name); }
void read(const base::Value& value, const char* name, std::vector<int64_t>& out) {
  out.clear();
  for (const base::Value& item : value.to_items(name)) out.push_back(item.to_int(name));
}
template <typename T>
void read(const base::Value& value, const char* name, std::optional<T>& out) {
  read(value, name, out.emplace());
}

void check_count(const char* option, const std::optional<int64_t>& value,
                 int64_t most = std::numeric_limits<int32_t>::max()) {
  if (value && (*value < 1 || *value > most)) {
    throw base::UsageError(std::string("[--") + option + "] " + std::to_string(*value) +
                           " was given; a whole number from 1 to " + std::to_string(most) +
                           " is accepted.");
  }
}

std::string list(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

void check_name(const char* option, const std::string& name,
                const std::vector<std::string>& accepted) {
  if (std::find(accepted.begin(), accepted.end(), name) == accepted.end()) {
    throw base::UsageError(std::string("[--") + option + "] '" + name +
                           "' is not known; accepted are: " + list(accepted) + ".");
  }
}

std::string resolve_precision(const char* option, const std::string& name, c10::Device device) {
  check_name(option, name, {"fp32", "bf16", "fp16", "auto"});
  return name == "auto" ? train::format_precision(train::recommended_precision(device)) : name;
}

}  // namespace

void add_train_options(CLI::App& command, TrainOptions& o) {
  const std::string model = "Model";
  command.add_option("--model", o.model, list(models::model_names()))
      ->capture_default_str()
      ->group(model);
  command
      .add_option("--hidden", o.hidden,
                  "mlp: widths of the hidden layers, each 1 or more [4096,4096]")
      ->delimiter(',')
      ->group(model);
  command
      .add_option("--image-size", o.image_size,
                  "Height and width of synthetic images, pixels, 1 or more [cnn 28, resnet18 224]")
      ->group(model);
  command.add_option("--context", o.context, "gpt: tokens a window, 1 or more [256]")->group(model);
  command
      .add_option("--vocab-size", o.vocab_size,
                  "gpt: tokens of the vocabulary at most, 256 or more [8192]")
      ->group(model);
  command.add_option("--d-model", o.d_model, "gpt: width, 1 or more [512]")->group(model);
  command.add_option("--layers", o.layers, "gpt: blocks, 1 or more [6]")->group(model);
  command.add_option("--heads", o.heads, "gpt: attention heads, a divisor of --d-model [8]")
      ->group(model);

  const std::string data = "Data";
  command
      .add_option("--data", o.data, list(train::dataset_names()) + " [fashion-mnist; gpt: text]")
      ->group(data);
  command
      .add_option("--data-path", o.data_path, "Folder of the data set's files, or the text file")
      ->group(data);
  command.add_option("--limit", o.limit, "Train on the first N examples, 1 or more [all]")
      ->group(data);
  command.add_option("--examples", o.examples, "Size of the synthetic training set, 1 or more")
      ->capture_default_str()
      ->group(data);
  command.add_option("--workers", o.workers, "Threads that read ahead, 0 or more")
      ->capture_default_str()
      ->group(data);

  const std::string mixed = "Mixed precision";
  command
      .add_option("--precision", o.precision, "fp32, bf16, fp16, or auto: what suits this machine")
      ->capture_default_str()
      ->group(mixed);
  command
      .add_option("--validate-precision", o.validate_precision,
                  "The same for validation, for example fp32 [as --precision]")
      ->group(mixed);
  command
      .add_flag("--master-weights,!--no-master-weights", o.master_weights,
                "Weights in 16 bits, the rest of each fp32 weight in the optimizer: the same "
                "numbers, less memory; with bf16 and fp16")
      ->group(mixed);
  command.add_option("--scaler", o.scaler, "Loss scaling: on, off, or auto: in fp16 alone")
      ->capture_default_str()
      ->group(mixed);
  command.add_option("--init-scale", o.init_scale, "First loss scale, above 0")
      ->capture_default_str()
      ->group(mixed);
  command
      .add_option("--growth-interval", o.growth_interval,
                  "Steps without overflow that double the scale, 1 or more")
      ->capture_default_str()
      ->group(mixed);
  command
      .add_option("--max-skipped", o.max_skipped,
                  "Skipped steps in a row that end the run, 1 or more")
      ->capture_default_str()
      ->group(mixed);

  const std::string training = "Training";
  command.add_option("--optimizer", o.optimizer, "adamw or sgd")
      ->capture_default_str()
      ->group(training);
  command.add_option("--lr", o.lr, "Learning rate, above 0 [adamw 0.001, sgd 0.01]")
      ->group(training);
  command.add_option("--weight-decay", o.weight_decay, "0 or more [adamw 0.01, sgd 0]")
      ->group(training);
  command.add_option("--momentum", o.momentum, "sgd: 0 to below 1")
      ->capture_default_str()
      ->group(training);
  command.add_option("--clip", o.clip, "Largest L2 norm of all gradients, above 0 [no clipping]")
      ->group(training);
  command
      .add_option("--ema", o.ema,
                  "What an average of the weights keeps at each step, 0 (no average) to below 1; "
                  "validation uses the average")
      ->capture_default_str()
      ->group(training);
  command
      .add_option("--warmup-steps", o.warmup_steps,
                  "Applied steps over which the rate rises, 0 or more")
      ->capture_default_str()
      ->group(training);
  command
      .add_option(
          "--schedule", o.schedule,
          "Rate after the warm-up: constant, or cosine down to 0 at the last of --epochs (without "
          "--epochs, of --steps) [cosine with --warmup-steps, else constant]")
      ->group(training);
  command.add_option("--batch", o.batch, "Examples a forward pass, 1 or more")
      ->capture_default_str()
      ->group(training);
  command.add_option("--accumulate", o.accumulate, "Forward passes an optimizer step, 1 or more")
      ->capture_default_str()
      ->group(training);
  command
      .add_option("--epochs", o.epochs,
                  "Passes over the data in total, with those before --resume, 1 or more [1]")
      ->group(training);
  command
      .add_option("--steps", o.steps,
                  "Stop after N optimizer steps in total, skipped ones included, 1 or more")
      ->group(training);
  command.add_option("--seed", o.seed, "Of weights, dropout and the order of the data, 0 or more")
      ->capture_default_str()
      ->group(training);

  const std::string machine = "Machine";
  command.add_option("--device", o.device, "cpu, cuda or cuda:N")
      ->capture_default_str()
      ->group(machine);
  command.add_option("--threads", o.threads, "Threads that compute, 1 or more [all cores]")
      ->group(machine);
  command
      .add_option("--layout", o.layout,
                  "contiguous, channels_last, or auto: channels_last for convolutions")
      ->capture_default_str()
      ->group(machine);
  command
      .add_option("--ops", o.ops,
                  "TorchAmp's CPU kernels in place of LibTorch's, which make fp16 fast: on or off")
      ->capture_default_str()
      ->group(machine);
  command
      .add_option(
          "--allocator", o.allocator,
          "Keep the memory of large CPU tensors for the next ones, in huge pages: on or off")
      ->capture_default_str()
      ->group(machine);
  command
      .add_option("--ops-choices", o.ops_choices,
                  "With --ops on, the fastest kernel for each 16-bit shape, by measurement: "
                  "on or off")
      ->capture_default_str()
      ->group(machine);

  const std::string files = "Files";
  command
      .add_option("--checkpoint", o.checkpoint, "Written after each epoch and at SIGINT or SIGTERM")
      ->group(files);
  command
      .add_option("--checkpoint-every-steps", o.checkpoint_every_steps,
                  "And every N steps within an epoch, 0 or more; 0: not")
      ->capture_default_str()
      ->group(files);
  command
      .add_option("--keep-last", o.keep_last,
                  "Newest checkpoints that stay, the earlier ones as NAME.step-N.pt, 1 or more")
      ->capture_default_str()
      ->group(files);
  command
      .add_flag("--keep-best,!--no-keep-best", o.keep_best,
                "The checkpoint of the epoch with the lowest validation loss stays, as "
                "NAME.best.pt")
      ->group(files);
  command
      .add_flag("--resume", o.resume,
                "Go on from --checkpoint, or the newest whole one kept beside it; what is not "
                "given again is taken from it")
      ->group(files);
  command.add_option("--csv", o.csv, "A row a step")->group(files);
  command.add_option("--json", o.json, "A JSON object an epoch, one a line")->group(files);
  command
      .add_option("--log-every", o.log_every,
                  "Steps a line where the output is no terminal, 1 or more [ten lines an epoch]")
      ->group(files);
  command.add_flag("--print-config", o.print_config, "Show the run in full, and end")->group(files);
}

base::StateDict to_state_dict(const TrainOptions& options) {
  base::StateDict dict;
  for_each_option(options, [&](const char* name, const auto& value) {
    if constexpr (IsOptional<std::decay_t<decltype(value)>>::value) {
      if (value) dict.set(name, value_of(*value));
    } else {
      dict.set(name, value_of(value));
    }
  });
  return dict;
}

void take_from_checkpoint(const base::StateDict& config, const CLI::App& command,
                          base::Differences& differences, TrainOptions& options) {
  const auto is_given = [&](const char* name) {
    return command.get_option(std::string("--") + name)->count() > 0;
  };
  const base::Value* model = config.find("model");
  if (model == nullptr) differences.add("model is missing");
  const bool is_readable = model != nullptr && model->is<std::string>();
  if (model != nullptr && !is_readable && is_given("model")) {
    differences.add("model is " + base::with_article(model->type_name()) + ", not a str");
  }
  if (is_readable && is_given("model") && options.model != model->to_string()) {
    throw base::CheckpointError(
        "[--resume] '" + options.checkpoint + "' is a checkpoint of model '" + model->to_string() +
        "', but --model " + options.model +
        " was given; the same model is accepted. Is it another run's file?");
  }
  for_each_option(options, [&](const char* name, auto& value) {
    const base::Value* saved = config.find(name);
    if (saved && !is_given(name)) differences.attempt([&] { read(*saved, name, value); });
  });
  // A limit on steps stopped the earlier part; it binds this one only where nothing else ends it.
  if (!is_given("steps") && options.epochs) options.steps.reset();
  // These follow from the precision where nothing else was said.
  if (is_given("precision") && !is_given("scaler")) options.scaler = "auto";
  if (is_given("precision") && !is_given("validate-precision")) options.validate_precision.reset();
}

void resolve(TrainOptions& o) {
  check_name("model", o.model, models::model_names());
  if (!o.data) o.data = o.model == "gpt" ? "text" : "fashion-mnist";
  check_name("data", *o.data, train::dataset_names());
  for (const int64_t width : o.hidden) check_count("hidden", width);
  check_count("image-size", o.image_size);
  check_count("context", o.context);
  check_count("vocab-size", o.vocab_size);
  check_count("d-model", o.d_model);
  check_count("layers", o.layers);
  check_count("heads", o.heads);
  check_count("limit", o.limit);
  check_count("examples", o.examples);
  check_count("threads", o.threads, 4096);
  check_count("log-every", o.log_every);
  // The parser turns a larger number into the largest one.
  constexpr int64_t kLargest = std::numeric_limits<int64_t>::max();
  if (o.seed < 0 || o.seed == kLargest) {
    throw base::UsageError(
        std::string("[--seed] ") + std::to_string(o.seed) + (o.seed < 0 ? "" : " or more") +
        " was given; a whole number from 0 to " + std::to_string(kLargest - 1) + " is accepted.");
  }
  if (o.resume && o.checkpoint.empty()) {
    throw base::UsageError("[--resume] No file to go on from; --checkpoint FILE names it.");
  }
  if (!o.schedule) o.schedule = o.warmup_steps > 0 ? "cosine" : "constant";
  if (!o.epochs && !o.steps) o.epochs = 1;

  if (o.checkpoint.empty() && (o.keep_best || o.keep_last > 1 || o.checkpoint_every_steps > 0)) {
    throw base::UsageError(
        "[--checkpoint] No file is named, but --keep-last, --keep-best or --checkpoint-every-steps "
        "is given; with --checkpoint FILE they are accepted.");
  }
  check_name("ops", o.ops, {"on", "off"});
  check_name("allocator", o.allocator, {"on", "off"});
  check_name("ops-choices", o.ops_choices, {"on", "off"});
  // "auto" measures on a CPU, so every mistake is found before.
  const c10::Device device = parse_device(o.device);
  TrainOptions probe = o;
  check_name("precision", o.precision, {"fp32", "bf16", "fp16", "auto"});
  if (o.validate_precision) {
    check_name("validate-precision", *o.validate_precision, {"fp32", "bf16", "fp16", "auto"});
  }
  if (probe.precision == "auto") probe.precision = o.master_weights ? "bf16" : "fp32";
  if (probe.validate_precision == "auto" || o.precision == "auto") probe.validate_precision.reset();
  trainer_config(probe).validate();

  if (o.threads) {
    at::set_num_threads(static_cast<int>(*o.threads));
  } else {
    o.threads = at::get_num_threads();
  }
  o.precision = resolve_precision("precision", o.precision, device);
  if (!o.validate_precision) o.validate_precision = o.precision;
  o.validate_precision = resolve_precision("validate-precision", *o.validate_precision, device);
  const train::TrainerConfig config = trainer_config(o);
  config.validate();
  o.lr = config.resolved_lr();
  o.weight_decay = config.resolved_weight_decay();
  o.scaler = config.uses_scaler() ? "on" : "off";
}

std::string describe(const TrainOptions& options) {
  std::string text;
  const auto add = [&](const char* name, const std::string& value) {
    text += std::string(name) + " = " + (value.empty() ? "(default)" : value) + "\n";
  };
  for_each_option(options, [&](const char* name, const auto& value) { add(name, text_of(value)); });
  const auto add_file = [&](const char* name, const std::string& value) {
    text += std::string(name) + " = " + (value.empty() ? "(none)" : value) + "\n";
  };
  add_file("checkpoint", options.checkpoint);
  add_file("csv", options.csv);
  add_file("json", options.json);
  add_file("resume", options.resume ? "true" : "false");
  return text;
}

models::ModelOptions model_options(const TrainOptions& o) {
  models::ModelOptions options;
  options.hidden = o.hidden;
  options.image_size = o.image_size.value_or(0);
  options.context = o.context.value_or(0);
  options.vocab_size = o.vocab_size.value_or(0);
  options.d_model = o.d_model.value_or(0);
  options.num_layers = o.layers.value_or(0);
  options.num_heads = o.heads.value_or(0);
  return options;
}

train::TrainerConfig trainer_config(const TrainOptions& o) {
  train::TrainerConfig config;
  config.precision = train::parse_precision(o.precision);
  if (o.validate_precision)
    config.validate_precision = train::parse_precision(*o.validate_precision);
  config.master_weights = o.master_weights;
  config.scaler = train::parse_scaler_use(o.scaler);
  config.init_scale = o.init_scale;
  config.growth_interval = o.growth_interval;
  config.max_skipped_in_a_row = o.max_skipped;
  config.optimizer = train::parse_optimizer(o.optimizer);
  config.lr = o.lr;
  config.weight_decay = o.weight_decay;
  config.momentum = o.momentum;
  config.clip = o.clip;
  config.ema_decay = o.ema;
  config.schedule = train::parse_schedule(o.schedule.value_or("constant"));
  config.warmup_steps = o.warmup_steps;
  config.batch = o.batch;
  config.accumulate = o.accumulate;
  config.epochs = o.epochs;
  config.steps = o.steps;
  config.seed = static_cast<uint64_t>(o.seed);
  config.workers = o.workers;
  config.device = parse_device(o.device);
  config.layout = train::parse_layout(o.layout);
  config.ops = o.ops == "on";
  config.caching_allocator = o.allocator == "on";
  config.ops_choices = o.ops_choices == "on";
  config.checkpoint = o.checkpoint;
  config.checkpoint_every_steps = o.checkpoint_every_steps;
  config.keep_last = o.keep_last;
  config.keep_best = o.keep_best;
  config.metadata = to_state_dict(o);
  return config;
}

}  // namespace torchamp::cli
