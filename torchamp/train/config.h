#pragma once
// What a training run is made of, apart from model and data: TrainerConfig and the names of its
// choices.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include <c10/core/Device.h>

#include "torchamp/base/export.h"
#include "torchamp/base/state_dict.h"
#include "torchamp/train/machine.h"

namespace torchamp::train {

enum class OptimizerKind { kAdamW, kSgd };
/// What the learning rate does after the warm-up.
enum class ScheduleKind { kConstant, kCosine };
/// Order of the dimensions in memory; kAuto is channels_last when the model has 4-D parameters.
enum class Layout { kAuto, kContiguous, kChannelsLast };
/// kAuto scales the loss in fp16 alone: bf16 has float32's range and needs no scale.
enum class ScalerUse { kAuto, kOn, kOff };

/// The name that the command line, the checkpoint and parse_...() use: "adamw", "sgd"; "constant",
/// "cosine"; "auto", "contiguous", "channels_last"; "auto", "on", "off".
TORCHAMP_API std::string_view to_string(OptimizerKind kind);
TORCHAMP_API std::string_view to_string(ScheduleKind kind);
TORCHAMP_API std::string_view to_string(Layout layout);
TORCHAMP_API std::string_view to_string(ScalerUse use);
/// Errors: UsageError that lists the accepted names.
TORCHAMP_API OptimizerKind parse_optimizer(std::string_view name);
TORCHAMP_API ScheduleKind parse_schedule(std::string_view name);
TORCHAMP_API Layout parse_layout(std::string_view name);
TORCHAMP_API ScalerUse parse_scaler_use(std::string_view name);

/// A run of the Trainer. The defaults train in fp32 for one epoch and write no file.
struct TORCHAMP_API TrainerConfig {
  Precision precision = Precision::kFp32;
  std::optional<Precision> validate_precision;  ///< absent: as in training
  /// 16-bit weights where autocast would cast them; the optimizer keeps the rest of each in float32
  /// (optim/low_precision.h). The same numbers, less memory and time. bf16 and fp16 only.
  bool master_weights = false;
  ScalerUse scaler = ScalerUse::kAuto;
  double init_scale = 65536.0;     ///< GradScaler's; above 0
  int64_t growth_interval = 2000;  ///< GradScaler's; steps, 1 or more

  OptimizerKind optimizer = OptimizerKind::kAdamW;
  std::optional<double> lr;            ///< above 0; absent: adamw 0.001, sgd 0.01
  std::optional<double> weight_decay;  ///< 0 or more; absent: adamw 0.01, sgd 0
  double momentum = 0.9;               ///< sgd's; 0 to below 1
  std::optional<double> clip;          ///< largest L2 norm of all gradients; above 0; absent: none

  /// What the average of the weights keeps at each applied step (optim/ema.h); 0: no average, to
  /// below 1. Validation then uses the averaged weights, and the checkpoint has both.
  double ema_decay = 0.0;

  ScheduleKind schedule = ScheduleKind::kConstant;
  int64_t warmup_steps = 0;  ///< applied steps of linear rise; 0 or more

  int64_t batch = 64;      ///< examples a forward pass; 1 or more
  int64_t accumulate = 1;  ///< forward passes an optimizer step; 1 or more
  /// The end of the run, in total, what came before a resume included; the earlier of the two
  /// counts. Neither: one epoch. A step that was skipped counts too, so that every run ends.
  std::optional<int64_t> epochs;  ///< 1 or more
  std::optional<int64_t> steps;   ///< 1 or more
  uint64_t seed = 0;    ///< of the order of the examples; the model's weights are the caller's
  int64_t workers = 1;  ///< threads that read data ahead; 0 reads in the training thread

  c10::Device device = c10::Device(c10::kCPU);
  /// Whether the run holds TorchAmp's CPU kernels on LibTorch's dispatcher (ops/install.h). false
  /// takes none away that the program has installed itself; TORCHAMP_OPS=off goes before true.
  bool ops = true;
  /// Whether the run holds TorchAmp's allocator for large CPU tensors installed
  /// (ops/caching_allocator.h); TORCHAMP_ALLOCATOR=off goes before true.
  bool caching_allocator = false;
  /// Whether 16-bit ops take the fastest of several kernels, by measurement (ops/choices.h); on
  /// where `ops` are. false keeps them off for the whole process while the Trainer lives.
  bool ops_choices = true;
  Layout layout = Layout::kAuto;

  /// This many skipped steps in a row end the run. A scale of 65536 reaches the floor, 2^-14, after
  /// 30 halvings; what still overflows ten steps later will not be helped by a smaller scale.
  int64_t max_skipped_in_a_row = 40;

  /// Written after each epoch, at the end and when a stop is asked for; empty: no file.
  std::filesystem::path checkpoint;
  int64_t checkpoint_every_steps = 0;    ///< and this often within an epoch; 0: not
  bool checkpoint_in_background = true;  ///< whether training goes on while the file is written
  int64_t keep_last = 1;  ///< newest checkpoints that stay (checkpoint_manager.h); 1 or more
  /// Whether the checkpoint of the epoch with the lowest validation loss stays, beside the last.
  bool keep_best = false;
  /// Stored in the checkpoint as "config": what the caller needs to build the same model and data.
  base::StateDict metadata;

  double resolved_lr() const;
  double resolved_weight_decay() const;
  Precision resolved_validate_precision() const { return validate_precision.value_or(precision); }
  bool uses_scaler() const;

  /// Errors: UsageError, one sentence, for the first value out of its range.
  void validate() const;
};

}  // namespace torchamp::train
