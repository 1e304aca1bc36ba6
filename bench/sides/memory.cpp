// How fast memory is, beside the optimizer phase: an in-place mul_, and the phase's own traffic
// without its arithmetic.

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/ops/ones.h>

#include "bench/sides/side.h"

namespace torchamp::bench {
namespace {

#ifndef _OPENMP
#error "memory.cpp needs -fopenmp"
#endif

using Clock = std::chrono::steady_clock;

constexpr int64_t kNumParameters = 20'000'000;
constexpr int64_t kBlock = 512;  // parameters, as the kernels take them

double milliseconds_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

// 256 MB are read and written.
class Bandwidth final : public Side {
 public:
  double run() override {
    const auto begin = Clock::now();
    values_.mul_(0.99999f);
    return milliseconds_since(begin);
  }
  base::StateDict result() override { return {}; }

 private:
  at::Tensor values_ = at::ones({256'000'000 / 4});
};

// Gradients are read for the norm; then gradients are read, and weights (with their rest) and two
// moments read and written, block by block, the last ranges first.
class Traffic final : public Side {
 public:
  explicit Traffic(bool has_16_bit_weights) {
    const int64_t words = has_16_bit_weights ? kBlock / 2 : kBlock;
    gradient_ = Array(words);
    written_.emplace_back(words);
    if (has_16_bit_weights) written_.emplace_back(words);
    for (int moment = 0; moment < 2; ++moment) written_.emplace_back(kBlock);
  }

  double run() override {
    const auto begin = Clock::now();
    at::parallel_for(0, kNumRanges, 1, [&](int64_t first, int64_t last) {
      uint32_t sum = 0;
      for (int64_t i = first * kRange; i < last * kRange; ++i) sum ^= gradient_.read(i);
      keep(sum);
    });
    at::parallel_for(0, kNumRanges, 1, [&](int64_t first, int64_t last) {
      for (int64_t range = last - 1; range >= first; --range) {
        for (int64_t i = range * kRange; i < (range + 1) * kRange; ++i) {
          const uint32_t word = gradient_.read(i);
          for (const Array& array : written_) array.add(i, word);
        }
      }
    });
    return milliseconds_since(begin);
  }
  base::StateDict result() override { return {}; }

 private:
  static constexpr int64_t kRange = 128;  // blocks, as multi_tensor cuts
  static constexpr int64_t kNumRanges = kNumParameters / kBlock / kRange;
  static constexpr int64_t kNumBlocks = kNumRanges * kRange;

  class Array {
   public:
    Array() = default;
    explicit Array(int64_t words_a_block)
        : words_a_block_(words_a_block),
          values_(at::ones({kNumBlocks * words_a_block}, at::kInt)),
          words_(reinterpret_cast<uint32_t*>(values_.data_ptr<int32_t>())) {}

    uint32_t read(int64_t block) const {
      const uint32_t* words = words_ + block * words_a_block_;
      ask_for(words + words_a_block_);
      uint32_t sum = 0;
      for (int64_t i = 0; i < words_a_block_; ++i) sum ^= words[i];
      return sum;
    }
    void add(int64_t block, uint32_t word) const {
      uint32_t* words = words_ + block * words_a_block_;
      ask_for(words + words_a_block_);
      for (int64_t i = 0; i < words_a_block_; ++i) words[i] += word;
    }

   private:
    void ask_for(const uint32_t* next) const {
      for (int64_t i = 0; i < words_a_block_; i += 16) __builtin_prefetch(next + i, 1);
    }

    int64_t words_a_block_ = 0;
    at::Tensor values_;
    uint32_t* words_ = nullptr;
  };

  static void keep(uint32_t value) { asm volatile("" : : "r"(value)); }

  Array gradient_;
  std::vector<Array> written_;
};

}  // namespace

std::unique_ptr<Side> make_memory(const Settings& settings) {
  const std::string& side = settings.at("side");
  if (side == "mul_") return std::make_unique<Bandwidth>();
  if (side == "traffic") return std::make_unique<Traffic>(settings.at("weights") == "bf16-master");
  throw std::invalid_argument("side=" + side + " came; mul_ or traffic is accepted");
}

}  // namespace torchamp::bench
