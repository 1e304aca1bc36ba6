#include "torchamp/train/data/text.h"

#include <algorithm>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>

#include <ATen/core/Tensor.h>

#include "torchamp/base/error.h"
#include "torchamp/train/data/bpe.h"
#include "torchamp/train/data/byte_file.h"
#include "torchamp/train/data/indices.h"

namespace torchamp::train {
namespace {

class TokenWindows : public Dataset {
 public:
  TokenWindows(std::vector<int32_t> tokens, int64_t context, int64_t vocab_size, int64_t limit)
      : tokens_(std::move(tokens)),
        size_((static_cast<int64_t>(tokens_.size()) - 1) / context),
        info_{.name = "text",
              .input_shape = {context},
              .input_dtype = at::kLong,
              .num_classes = vocab_size,
              .is_text = true} {
    if (limit > 0) size_ = std::min(size_, limit);
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
      const int32_t* window = tokens_.data() + index * context;
      input = std::copy(window, window + context, input);
      target = std::copy(window + 1, window + 1 + context, target);
    }
    return batch;
  }

 private:
  std::vector<int32_t> tokens_;
  int64_t size_;
  DatasetInfo info_;
};

std::string read_text(const std::string& path) {
  ByteFile file("text", path);
  std::string text = file.read_all();
  if (text.empty()) file.fail(0, "ends", "a text is expected, and the file is empty.");
  return text;
}

}  // namespace

DatasetPair open_text(const DataOptions& options) {
  if (options.context < 1) {
    throw base::UsageError("[text] the context is " + std::to_string(options.context) +
                           " tokens; 1 or more is accepted.");
  }
  const std::string text = read_text(options.path);
  const std::string_view whole = text;
  const std::string_view for_training = whole.substr(0, whole.size() - whole.size() / 10);
  const BytePairEncoding tokenizer =
      options.state != nullptr ? BytePairEncoding::from_state_dict(*options.state)
                               : BytePairEncoding::train(for_training, options.vocab_size);

  const auto open = [&](std::string_view part, const char* which, int64_t limit) {
    std::vector<int32_t> tokens = tokenizer.encode(part);
    if (static_cast<int64_t>(tokens.size()) <= options.context) {
      throw base::DataError("[text] '" + options.path + "' is too short: its " + which + " has " +
                            std::to_string(tokens.size()) + " tokens (bytes to byte " +
                            std::to_string(part.data() + part.size() - whole.data()) +
                            "), and one window of " + std::to_string(options.context) +
                            " tokens with its target takes " + std::to_string(options.context + 1) +
                            "; a longer text or a smaller context is needed.");
    }
    return std::make_shared<TokenWindows>(std::move(tokens), options.context,
                                          tokenizer.vocab_size(), limit);
  };
  return {.train = open(for_training, "training part", options.limit),
          .validation = open(whole.substr(for_training.size()), "validation part", 0),
          .state = tokenizer.state_dict()};
}

}  // namespace torchamp::train
