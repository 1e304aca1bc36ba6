#pragma once
// Made-up examples of any shape, for benchmarks, tests and first runs: nothing is read or
// downloaded.

#include <cstdint>
#include <memory>

#include "torchamp/base/export.h"
#include "torchamp/train/data/dataset.h"

namespace torchamp::train {

/// Examples that a model can learn, so that a falling loss means that training works. Each is a
/// function of (seed, split, index) alone, the same on every platform; memory does not grow with
/// their number.
///
/// Numbers: the first dimension of `shape` is taken as channels and the rest of it is cut into up
/// to 16 equal runs. x = mean(class, channel, run) + noise, both uniform with variance 1/2, so that
/// x has about mean 0 and variance 1. The two splits share the means and have noise of their own.
///
/// Tokens: each is, evenly, the successor of the one before it or floor(vocab_size * u^3) for a
/// uniform u; a model that has learnt both has a loss well below ln(vocab_size).
///
/// Errors: UsageError for an empty shape or a size below 1.
TORCHAMP_API std::shared_ptr<Dataset> make_synthetic(const SyntheticShape& shape, int64_t size,
                                                     uint64_t seed, uint64_t split);
/// The same for tokens; `split` is 0 for training and 1 for validation.
TORCHAMP_API std::shared_ptr<Dataset> make_synthetic_tokens(int64_t context, int64_t vocab_size,
                                                            int64_t size, uint64_t seed,
                                                            uint64_t split);

}  // namespace torchamp::train
