#pragma once
// BatchStream: one pass over a Dataset, batch after batch, read ahead by worker threads. Which
// examples, in which order, is decided here; what an example is, in dataset.h.

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "torchamp/base/export.h"
#include "torchamp/train/data/dataset.h"

namespace torchamp::train {

/// The order of `size` examples in epoch `epoch`: a permutation of 0 .. size-1 that depends on
/// nothing else than the arguments, on every platform and in every release.
///
/// Fisher-Yates from the last place down; place i swaps with a draw from [0, i], made by rejecting
/// and reducing the outputs of std::mt19937_64, seeded with mix64(mix64(seed) ^ epoch), where mix64
/// is the output function of splitmix64.
/// Source: Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators".
TORCHAMP_API std::vector<int64_t> epoch_order(int64_t size, uint64_t seed, int64_t epoch);

struct BatchStreamOptions {
  int64_t batch_size = 1;
  bool shuffle = false;  ///< epoch_order() instead of 0, 1, 2, ...
  uint64_t seed = 0;
  int64_t epoch = 0;
  int64_t first_batch = 0;  ///< begin here: resumes an epoch that was left in the middle
  int64_t num_workers = 1;  ///< threads; 0 makes each batch in next()
  int64_t prefetch = 4;     ///< batches held ready ahead of the reader, at most
  bool drop_last = false;   ///< leave out a last batch that is shorter than the others
};

/// The batches of one epoch, in order.
///
/// The sequence depends on the data and on (batch_size, shuffle, seed, epoch, first_batch,
/// drop_last), never on num_workers, prefetch or timing. No generator of LibTorch is read or moved.
///
/// Thread safety: one reader. Destruction at any time stops and joins the workers; it waits for the
/// batches being made, not for those still to come.
class TORCHAMP_API BatchStream {
 public:
  /// Errors: UsageError for a size, a count or a first batch out of range.
  BatchStream(std::shared_ptr<const Dataset> dataset, BatchStreamOptions options);
  BatchStream(BatchStream&&) noexcept;
  BatchStream& operator=(BatchStream&&) noexcept;
  ~BatchStream();

  /// The next batch, or nothing after the last.
  ///
  /// Errors: whatever Dataset::collate threw for this batch, on this and each later call.
  std::optional<Batch> next();

  /// Batches of the whole epoch, those before first_batch included.
  int64_t num_batches() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace torchamp::train
