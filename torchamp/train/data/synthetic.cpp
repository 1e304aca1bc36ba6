#include "torchamp/train/data/synthetic.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include "torchamp/base/error.h"
#include "torchamp/train/data/indices.h"
#include "torchamp/train/data/mix64.h"

namespace torchamp::train {
namespace {

constexpr int64_t kMaxRuns = 16;         // a 4x4 picture's worth of means a channel
constexpr size_t kNoise = 1 << 16;       // 256 KB: stays in L2, repeats only within large examples
constexpr float kHalfWidth = 1.224745F;  // sqrt(3/2): uniform in +-sqrt(3/2) has variance 1/2

// Streams of random words: word n of a stream is mix64(key ^ n).
enum class Stream : uint64_t { kLabel = 1, kOffset, kMean, kNoise, kTokens };

uint64_t key_of(uint64_t seed, Stream stream, uint64_t split) {
  return mix64(mix64(seed) ^ (static_cast<uint64_t>(stream) << 32) ^ split);
}

// 24 bits, exact in float32.
float symmetric_uniform(uint64_t word) {
  return (static_cast<float>(word >> 40) * 0x1p-23F - 1.0F) * kHalfWidth;
}

double unit_uniform(uint64_t word) { return static_cast<double>(word >> 11) * 0x1p-53; }

void check_size(const char* name, int64_t value, int64_t least) {
  if (value < least) {
    throw base::UsageError("[synthetic] " + std::string(name) + " is " + std::to_string(value) +
                           "; " + std::to_string(least) + " or more is accepted.");
  }
}

class SyntheticExamples : public Dataset {
 public:
  SyntheticExamples(const SyntheticShape& shape, int64_t size, uint64_t seed, uint64_t split)
      : size_(size),
        label_key_(key_of(seed, Stream::kLabel, split)),
        offset_key_(key_of(seed, Stream::kOffset, split)),
        mean_key_(key_of(seed, Stream::kMean, 0)),
        noise_(kNoise) {
    info_ = {.name = "synthetic",
             .input_shape = shape.shape,
             .input_dtype = at::kFloat,
             .num_classes = shape.num_classes,
             .is_text = false};
    channels_ = shape.shape[0];
    for (const int64_t extent : shape.shape) elements_ *= extent;
    inner_ = elements_ / channels_;
    runs_ = std::min(kMaxRuns, inner_);
    const uint64_t noise_key = key_of(seed, Stream::kNoise, split);
    for (size_t i = 0; i < kNoise; ++i) noise_[i] = symmetric_uniform(mix64(noise_key ^ i));
  }

  int64_t size() const override { return size_; }
  const DatasetInfo& info() const override { return info_; }

  Batch collate(const std::vector<int64_t>& indices) const override {
    check_indices(indices, size_, info_.name);
    std::vector<int64_t> input_shape = info_.input_shape;
    input_shape.insert(input_shape.begin(), static_cast<int64_t>(indices.size()));
    Batch batch{at::empty(input_shape, at::kFloat), at::empty({input_shape[0]}, at::kLong)};
    float* input = batch.input.mutable_data_ptr<float>();
    int64_t* target = batch.target.mutable_data_ptr<int64_t>();
    for (const int64_t index : indices) {
      const auto word = static_cast<uint64_t>(index);
      const uint64_t label = mix64(label_key_ ^ word) % static_cast<uint64_t>(info_.num_classes);
      write_example(input, label, mix64(offset_key_ ^ word));
      *target++ = static_cast<int64_t>(label);
      input += elements_;
    }
    return batch;
  }

 private:
  void write_example(float* out, uint64_t label, uint64_t offset) const {
    int64_t element = 0;
    for (int64_t channel = 0; channel < channels_; ++channel) {
      for (int64_t run = 0; run < runs_; ++run) {
        const auto place = static_cast<uint64_t>(channel * runs_ + run);
        const float mean = symmetric_uniform(mix64(mean_key_ ^ mix64(label) ^ place));
        const int64_t end = channel * inner_ + (run + 1) * inner_ / runs_;
        for (; element < end; ++element) {
          out[element] = mean + noise_[(offset + static_cast<uint64_t>(element)) % kNoise];
        }
      }
    }
  }

  DatasetInfo info_;
  int64_t size_;
  uint64_t label_key_, offset_key_, mean_key_;
  int64_t channels_ = 1, elements_ = 1, inner_ = 1, runs_ = 1;
  std::vector<float> noise_;
};

class SyntheticTokens : public Dataset {
 public:
  SyntheticTokens(int64_t context, int64_t vocab_size, int64_t size, uint64_t seed, uint64_t split)
      : size_(size), key_(key_of(seed, Stream::kTokens, split)) {
    info_ = {.name = "synthetic",
             .input_shape = {context},
             .input_dtype = at::kLong,
             .num_classes = vocab_size,
             .is_text = true};
  }

  int64_t size() const override { return size_; }
  const DatasetInfo& info() const override { return info_; }

  Batch collate(const std::vector<int64_t>& indices) const override {
    check_indices(indices, size_, info_.name);
    const int64_t context = info_.input_shape[0];
    Batch batch = empty_token_batch(indices.size(), context);
    int64_t* input = batch.input.mutable_data_ptr<int64_t>();
    int64_t* target = batch.target.mutable_data_ptr<int64_t>();
    for (const int64_t index : indices) {
      const uint64_t key = mix64(key_ ^ static_cast<uint64_t>(index));
      int64_t token = rare_or_frequent(mix64(key));
      for (int64_t i = 0; i < context; ++i) {
        *input++ = token;
        token = after(token, mix64(key ^ static_cast<uint64_t>(i + 1)));
        *target++ = token;
      }
    }
    return batch;
  }

 private:
  int64_t rare_or_frequent(uint64_t word) const {
    const double u = unit_uniform(word);
    return static_cast<int64_t>(static_cast<double>(info_.num_classes) * (u * u * u));
  }

  int64_t after(int64_t token, uint64_t word) const {
    return (word & 1U) != 0 ? (token + 1) % info_.num_classes : rare_or_frequent(word);
  }

  DatasetInfo info_;
  int64_t size_;
  uint64_t key_;
};

}  // namespace

std::shared_ptr<Dataset> make_synthetic(const SyntheticShape& shape, int64_t size, uint64_t seed,
                                        uint64_t split) {
  if (shape.shape.empty()) {
    throw base::UsageError(
        "[synthetic] the shape of an example is empty; one dimension or more "
        "is accepted, for example 1,28,28.");
  }
  constexpr int64_t kMaxElements = int64_t{1} << 31;  // 8 GiB an example
  int64_t elements = 1;
  for (const int64_t extent : shape.shape) {
    check_size("an extent of the shape", extent, 1);
    if (extent > kMaxElements / elements) {
      throw base::UsageError(
          "[synthetic] one example has more than 2^31 numbers; give a smaller "
          "shape.");
    }
    elements *= extent;
  }
  check_size("num_classes", shape.num_classes, 1);
  check_size("the number of examples", size, 1);
  return std::make_shared<SyntheticExamples>(shape, size, seed, split);
}

std::shared_ptr<Dataset> make_synthetic_tokens(int64_t context, int64_t vocab_size, int64_t size,
                                               uint64_t seed, uint64_t split) {
  check_size("context", context, 1);
  check_size("vocab_size", vocab_size, 2);
  check_size("the number of examples", size, 1);
  return std::make_shared<SyntheticTokens>(context, vocab_size, size, seed, split);
}

}  // namespace torchamp::train
