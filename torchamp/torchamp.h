#pragma once
// The umbrella: every public header of TorchAmp. Includes only, and the names that users meet most.

#include "torchamp/amp/activation_checkpoint.h"
#include "torchamp/amp/autocast.h"
#include "torchamp/amp/autocast_policy.h"
#include "torchamp/amp/buffer_guard.h"
#include "torchamp/amp/custom_function.h"
#include "torchamp/amp/fp32_island.h"
#include "torchamp/amp/grad_scaler.h"
#include "torchamp/amp/op_rule.h"
#include "torchamp/amp/script_module.h"
#include "torchamp/amp/step_outcome.h"
#include "torchamp/amp/with_autocast_state.h"
#include "torchamp/base/error.h"
#include "torchamp/base/state_dict.h"
#include "torchamp/base/version.h"
#include "torchamp/checkpoint/checkpoint.h"
#include "torchamp/checkpoint/checkpoint_manager.h"
#include "torchamp/checkpoint/safetensors.h"
#include "torchamp/multi_tensor/cpu_kernels.h"
#include "torchamp/ops/install.h"
#include "torchamp/optim/adamw.h"
#include "torchamp/optim/clip_grad_norm.h"
#include "torchamp/optim/ema.h"
#include "torchamp/optim/follow_applied_steps.h"
#include "torchamp/optim/lamb.h"
#include "torchamp/optim/low_precision.h"
#include "torchamp/optim/lr_schedule.h"
#include "torchamp/optim/main_grad.h"
#include "torchamp/optim/sgd.h"
#include "torchamp/optim/state.h"
#include "torchamp/train/module_state.h"

namespace torchamp {

using amp::Autocast;
using amp::GradScaler;
using optim::clip_grad_norm_;
using optim::to_low_precision;

}  // namespace torchamp
