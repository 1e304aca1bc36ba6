#include "torchamp/train/data/loader.h"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <utility>

#include "torchamp/base/error.h"
#include "torchamp/train/data/mix64.h"

namespace torchamp::train {
namespace {

// Uniform in [0, bound): outputs below 2^64 mod bound are drawn again, so that every residue is
// equally likely.
uint64_t draw_below(std::mt19937_64& engine, uint64_t bound) {
  const uint64_t rejected = (0 - bound) % bound;
  uint64_t word = engine();
  while (word < rejected) word = engine();
  return word % bound;
}

void check_range(const char* name, int64_t value, int64_t least, const char* accepted) {
  if (value < least) {
    throw base::UsageError("[BatchStream] " + std::string(name) + " is " + std::to_string(value) +
                           "; " + accepted + " is accepted.");
  }
}

}  // namespace

std::vector<int64_t> epoch_order(int64_t size, uint64_t seed, int64_t epoch) {
  std::vector<int64_t> order(static_cast<size_t>(std::max<int64_t>(size, 0)));
  std::iota(order.begin(), order.end(), int64_t{0});
  std::mt19937_64 engine(mix64(mix64(seed) ^ static_cast<uint64_t>(epoch)));
  for (size_t place = order.size(); place-- > 1;) {
    std::swap(order[place], order[draw_below(engine, place + 1)]);
  }
  return order;
}

// Batch b is made by whichever worker claims it and waits in slot b mod prefetch until the reader
// takes it; a batch is claimed only when its slot is free.
struct BatchStream::State {
  struct Slot {
    bool ready = false;
    Batch batch;
    std::exception_ptr error;
  };

  State(std::shared_ptr<const Dataset> data, const BatchStreamOptions& chosen)
      : dataset(std::move(data)), options(chosen) {
    const int64_t size = dataset->size();
    total = options.drop_last ? size / options.batch_size
                              : size / options.batch_size + (size % options.batch_size != 0);
    if (options.first_batch > total) {
      throw base::UsageError("[BatchStream] first_batch is " + std::to_string(options.first_batch) +
                             ", but the epoch has " + std::to_string(total) +
                             " batches. Has the data or the batch size changed since the "
                             "checkpoint was written?");
    }
    if (options.shuffle) order = epoch_order(size, options.seed, options.epoch);
    claimed = taken = options.first_batch;
    slots.resize(static_cast<size_t>(options.prefetch));
  }

  ~State() {
    stop();
    for (std::thread& worker : workers) worker.join();
  }

  void start() {
    const int64_t count = std::min({options.num_workers, options.prefetch, total - taken});
    workers.reserve(static_cast<size_t>(std::max<int64_t>(count, 0)));
    for (int64_t i = 0; i < count; ++i) workers.emplace_back([this] { work(); });
  }

  void stop() {
    const std::lock_guard<std::mutex> lock(mutex);
    stopping = true;
    slot_freed.notify_all();
  }

  Slot& slot_of(int64_t batch) { return slots[static_cast<size_t>(batch % options.prefetch)]; }

  Batch make(int64_t batch) const {
    const int64_t begin = batch * options.batch_size;
    const int64_t end = std::min(begin + options.batch_size, dataset->size());
    std::vector<int64_t> indices(static_cast<size_t>(end - begin));
    std::iota(indices.begin(), indices.end(), begin);
    if (options.shuffle) {
      for (int64_t& index : indices) index = order[static_cast<size_t>(index)];
    }
    return dataset->collate(indices);
  }

  void work() {
    std::unique_lock<std::mutex> lock(mutex);
    for (;;) {
      slot_freed.wait(
          lock, [&] { return stopping || claimed == total || claimed < taken + options.prefetch; });
      if (stopping || claimed == total) return;
      const int64_t batch = claimed++;
      lock.unlock();
      Slot made;
      try {
        made.batch = make(batch);
      } catch (...) {
        made.error = std::current_exception();
      }
      made.ready = true;
      lock.lock();
      if (made.error) stopping = true;  // the reader gets no further than this batch
      slot_of(batch) = std::move(made);
      slot_filled.notify_one();
    }
  }

  std::shared_ptr<const Dataset> dataset;
  BatchStreamOptions options;
  std::vector<int64_t> order;
  int64_t total = 0;

  std::mutex mutex;  // guards everything below except `workers`
  std::condition_variable slot_freed;
  std::condition_variable slot_filled;
  int64_t claimed = 0;  // batches given to workers
  int64_t taken = 0;    // batches given to the reader
  bool stopping = false;
  std::exception_ptr failure;
  std::vector<Slot> slots;

  std::vector<std::thread> workers;
};

BatchStream::BatchStream(std::shared_ptr<const Dataset> dataset, BatchStreamOptions options) {
  if (!dataset) throw base::UsageError("[BatchStream] there is no dataset (null was given).");
  check_range("batch_size", options.batch_size, 1, "1 or more");
  check_range("epoch", options.epoch, 0, "0 or more");
  check_range("first_batch", options.first_batch, 0, "0 or more");
  check_range("num_workers", options.num_workers, 0, "0 or more");
  check_range("prefetch", options.prefetch, 1, "1 or more");
  state_ = std::make_unique<State>(std::move(dataset), options);
  state_->start();
}

BatchStream::BatchStream(BatchStream&&) noexcept = default;
BatchStream& BatchStream::operator=(BatchStream&&) noexcept = default;
BatchStream::~BatchStream() = default;

std::optional<Batch> BatchStream::next() {
  State& state = *state_;
  std::unique_lock<std::mutex> lock(state.mutex);
  if (state.failure) std::rethrow_exception(state.failure);
  if (state.taken == state.total) return std::nullopt;

  if (state.workers.empty()) {
    try {
      Batch batch = state.make(state.taken);
      ++state.taken;
      return batch;
    } catch (...) {
      state.failure = std::current_exception();
      throw;
    }
  }

  State::Slot& slot = state.slot_of(state.taken);
  state.slot_filled.wait(lock, [&] { return slot.ready; });
  if (slot.error) {
    state.failure = slot.error;
    std::rethrow_exception(state.failure);
  }
  Batch batch = std::move(slot.batch);
  slot = State::Slot();
  ++state.taken;
  state.slot_freed.notify_one();
  return batch;
}

int64_t BatchStream::num_batches() const { return state_->total; }

}  // namespace torchamp::train
