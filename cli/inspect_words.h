#pragma once
// What the parts of a checkpoint mean, in words, as far as their keys tell.

#include <string>

#include "torchamp/base/state_dict.h"

namespace torchamp::cli {

/// "AdamW state: 4 parameters, step 12, lr 0.001" and the like; empty for what is not known.
std::string words_for(const base::StateDict::Key& key, const base::Value& value);

/// "epoch 3, step 120, loss 0.41, lr 0.001, loss scale 65536, precision bf16" of a run's
/// checkpoint; what words_for() says of a file that is a part of one; empty for others.
std::string run_words(const base::Value& root);

}  // namespace torchamp::cli
