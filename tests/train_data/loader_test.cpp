#include "torchamp/train/data/loader.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <fstream>
#include <mutex>
#include <set>
#include <sstream>
#include <thread>

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "torchamp/base/error.h"

namespace torchamp::train {
namespace {

// Example i is the number i; collate may be slow, may throw, and counts its calls.
class Counting : public Dataset {
 public:
  explicit Counting(int64_t size) : size_(size) {
    info_ = {.name = "counting", .input_shape = {1}, .num_classes = 2};
  }
  int64_t size() const override { return size_; }
  const DatasetInfo& info() const override { return info_; }
  Batch collate(const std::vector<int64_t>& indices) const override {
    ++calls;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      threads.insert(std::this_thread::get_id());
    }
    if (delay_us > 0) {
      // Later batches are quicker, so that workers finish out of order.
      std::this_thread::sleep_for(std::chrono::microseconds(delay_us * (1 + indices[0] % 3)));
    }
    if (std::find(indices.begin(), indices.end(), bad_index) != indices.end()) {
      throw base::DataError("example " + std::to_string(bad_index) + " is bad");
    }
    const torch::Tensor numbers = torch::tensor(indices, torch::kLong);
    return {numbers.to(torch::kFloat).unsqueeze(1), numbers};
  }

  int64_t bad_index = -1;
  int64_t delay_us = 0;
  mutable std::atomic<int> calls{0};
  mutable std::set<std::thread::id> threads;

 private:
  int64_t size_;
  DatasetInfo info_;
  mutable std::mutex mutex_;
};

using Batches = std::vector<std::vector<int64_t>>;

Batches read_all(BatchStream& stream) {
  Batches batches;
  while (const std::optional<Batch> batch = stream.next()) {
    const auto* data = batch->target.data_ptr<int64_t>();
    batches.emplace_back(data, data + batch->target.numel());
  }
  return batches;
}

Batches read_all(const std::shared_ptr<Counting>& data, const BatchStreamOptions& options) {
  BatchStream stream(data, options);
  return read_all(stream);
}

TEST(EpochOrder, EqualsTheRuleWrittenInPython) {
  std::ifstream golden(TORCHAMP_GOLDEN_DIR "/train_data/epoch_order.txt");
  ASSERT_TRUE(golden.is_open());
  int rows = 0;
  for (std::string line; std::getline(golden, line); ++rows) {
    std::istringstream words(line);
    int64_t size = 0;
    uint64_t seed = 0;
    int64_t epoch = 0;
    words >> size >> seed >> epoch;
    std::vector<int64_t> expected(static_cast<size_t>(size));
    for (int64_t& index : expected) words >> index;
    ASSERT_FALSE(words.fail());
    EXPECT_EQ(epoch_order(size, seed, epoch), expected) << size << " " << seed << " " << epoch;
  }
  EXPECT_EQ(rows, 6);
}

TEST(EpochOrder, IsAPermutationThatChangesWithSeedAndEpoch) {
  std::vector<int64_t> order = epoch_order(1000, 3, 4);
  EXPECT_NE(order, epoch_order(1000, 3, 5));
  EXPECT_NE(order, epoch_order(1000, 4, 4));
  EXPECT_EQ(order, epoch_order(1000, 3, 4));
  std::sort(order.begin(), order.end());
  for (int64_t i = 0; i < 1000; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], i);
  EXPECT_TRUE(epoch_order(0, 0, 0).empty());
}

TEST(BatchStream, GivesEveryExampleInOrderAndAShortLastBatch) {
  const auto data = std::make_shared<Counting>(7);
  EXPECT_EQ(read_all(data, {.batch_size = 3}), (Batches{{0, 1, 2}, {3, 4, 5}, {6}}));
  EXPECT_EQ(read_all(data, {.batch_size = 7}), (Batches{{0, 1, 2, 3, 4, 5, 6}}));
  EXPECT_EQ(read_all(data, {.batch_size = 8}), (Batches{{0, 1, 2, 3, 4, 5, 6}}));
}

TEST(BatchStream, DropLastLeavesOutOnlyAShortBatch) {
  const auto data = std::make_shared<Counting>(6);
  EXPECT_EQ(read_all(data, {.batch_size = 4, .drop_last = true}), (Batches{{0, 1, 2, 3}}));
  EXPECT_EQ(read_all(data, {.batch_size = 3, .drop_last = true}), (Batches{{0, 1, 2}, {3, 4, 5}}));
  BatchStream none(data, {.batch_size = 7, .drop_last = true});
  EXPECT_EQ(none.num_batches(), 0);
  EXPECT_FALSE(none.next());
}

TEST(BatchStream, OrderIsTheSameForEveryNumberOfWorkersAndPrefetch) {
  const auto data = std::make_shared<Counting>(101);
  data->delay_us = 200;
  const std::vector<int64_t> order = epoch_order(101, 5, 2);
  Batches expected;
  for (size_t begin = 0; begin < order.size(); begin += 4) {
    expected.emplace_back(order.begin() + static_cast<int64_t>(begin),
                          order.begin() + static_cast<int64_t>(std::min(begin + 4, order.size())));
  }
  for (const int64_t workers : {0, 1, 2, 5}) {
    for (const int64_t prefetch : {1, 2, 7}) {
      EXPECT_EQ(read_all(data, {.batch_size = 4,
                                .shuffle = true,
                                .seed = 5,
                                .epoch = 2,
                                .num_workers = workers,
                                .prefetch = prefetch}),
                expected)
          << workers << " workers, prefetch " << prefetch;
    }
  }
}

TEST(BatchStream, FirstBatchContinuesAnEpochWhereItWasLeft) {
  const auto data = std::make_shared<Counting>(23);
  for (const int64_t workers : {0, 2}) {
    BatchStreamOptions options{
        .batch_size = 4, .shuffle = true, .seed = 9, .epoch = 1, .num_workers = workers};
    const Batches whole = read_all(data, options);
    for (int64_t first = 0; first <= 6; ++first) {
      options.first_batch = first;
      BatchStream stream(data, options);
      EXPECT_EQ(stream.num_batches(), 6);
      EXPECT_EQ(read_all(stream), Batches(whole.begin() + first, whole.end()));
      EXPECT_FALSE(stream.next()) << "the end stays the end";
    }
  }
}

TEST(BatchStream, ReadsNoFurtherAheadThanPrefetch) {
  const auto data = std::make_shared<Counting>(100);
  BatchStream stream(data, {.batch_size = 1, .num_workers = 2, .prefetch = 3});
  const auto wait_for = [&](int calls) {
    for (int i = 0; i < 2000 && data->calls < calls; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // room for a mistaken extra call
    return data->calls.load();
  };
  EXPECT_EQ(wait_for(3), 3);
  EXPECT_TRUE(stream.next());
  EXPECT_EQ(wait_for(4), 4);
}

TEST(BatchStream, WorkersMakeBatchesOffTheReadersThread) {
  const auto data = std::make_shared<Counting>(50);
  read_all(data, {.batch_size = 1, .num_workers = 2});
  EXPECT_EQ(data->threads.count(std::this_thread::get_id()), 0U);
  data->threads.clear();
  read_all(data, {.batch_size = 1, .num_workers = 0});
  EXPECT_EQ(data->threads, std::set<std::thread::id>{std::this_thread::get_id()});
}

TEST(BatchStream, AWorkersErrorArrivesAtItsBatchAndStays) {
  const auto data = std::make_shared<Counting>(40);
  data->bad_index = 10;
  data->delay_us = 100;
  for (const int64_t workers : {0, 1, 4}) {
    BatchStream stream(data, {.batch_size = 2, .num_workers = workers, .prefetch = 4});
    for (int batch = 0; batch < 5; ++batch) {
      const std::optional<Batch> good = stream.next();
      ASSERT_TRUE(good);
      EXPECT_EQ(good->target[0].item<int64_t>(), 2 * batch);
    }
    for (int again = 0; again < 2; ++again) {
      try {
        stream.next();
        FAIL() << "no error";
      } catch (const base::DataError& error) {
        EXPECT_STREQ(error.what(), "example 10 is bad");
      }
    }
  }
}

TEST(BatchStream, CanBeDestroyedAtAnyTime) {
  const auto data = std::make_shared<Counting>(1000);
  data->delay_us = 300;
  for (int taken = 0; taken < 12; ++taken) {
    BatchStream stream(data, {.batch_size = 2, .num_workers = 3, .prefetch = 5});
    for (int i = 0; i < taken; ++i) ASSERT_TRUE(stream.next());
  }
  EXPECT_LT(data->calls, 12 * (12 + 5 + 1)) << "the rest of an epoch is not made";
  EXPECT_EQ(data.use_count(), 1);
}

TEST(BatchStream, MovingKeepsThePlace) {
  const auto data = std::make_shared<Counting>(6);
  BatchStream stream(data, {.batch_size = 2, .num_workers = 1});
  ASSERT_TRUE(stream.next());
  BatchStream moved = std::move(stream);
  EXPECT_EQ(read_all(moved), (Batches{{2, 3}, {4, 5}}));
}

TEST(BatchStream, LeavesLibTorchsGeneratorAlone) {
  torch::manual_seed(7);
  const torch::Tensor before = at::globalContext().defaultGenerator(at::kCPU).get_state();
  const auto data = std::make_shared<Counting>(50);
  read_all(data, {.batch_size = 4, .shuffle = true, .num_workers = 2});
  read_all(data, {.batch_size = 4, .shuffle = true, .num_workers = 0});
  EXPECT_TRUE(torch::equal(before, at::globalContext().defaultGenerator(at::kCPU).get_state()));
}

TEST(BatchStream, RefusesCountsOutOfRange) {
  const auto data = std::make_shared<Counting>(10);
  const std::vector<BatchStreamOptions> wrong = {
      {.batch_size = 0},
      {.batch_size = -3},
      {.batch_size = 2, .epoch = -1},
      {.batch_size = 2, .first_batch = -1},
      {.batch_size = 2, .first_batch = 6},  // there are 5
      {.batch_size = 2, .num_workers = -1},
      {.batch_size = 2, .prefetch = 0}};
  for (const BatchStreamOptions& options : wrong) {
    EXPECT_THROW(BatchStream(data, options), base::UsageError);
  }
  EXPECT_THROW(BatchStream(nullptr, {}), base::UsageError);
}

}  // namespace
}  // namespace torchamp::train
