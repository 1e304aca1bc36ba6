#include "torchamp/train/data/dataset.h"

#include <array>
#include <filesystem>
#include <system_error>
#include <utility>

#include "torchamp/base/error.h"
#include "torchamp/train/data/cifar.h"
#include "torchamp/train/data/idx.h"
#include "torchamp/train/data/image_dataset.h"
#include "torchamp/train/data/synthetic.h"
#include "torchamp/train/data/text.h"

namespace torchamp::train {
namespace {

constexpr const char* kDebianFashionMnist = "/usr/share/datasets/fashion-mnist";

void need_path(const DataOptions& options, const std::string& what) {
  if (options.path.empty()) {
    throw base::UsageError("[data] '" + options.name + "' needs a path; " + what +
                           " is accepted, and none was given.");
  }
}

std::filesystem::path need_folder(const DataOptions& options, const std::string& what) {
  need_path(options, what);
  std::error_code error;
  if (!std::filesystem::is_directory(options.path, error)) {
    throw base::DataError("[" + options.name + "] '" + options.path + "' is not a folder; " + what +
                          " is expected. Is the path right?");
  }
  return options.path;
}

DatasetPair open_idx(const DataOptions& options, double mean, double std) {
  const std::filesystem::path folder =
      need_folder(options, "the folder of train-images-idx3-ubyte and its three companions");
  const auto open = [&](Split split, int64_t limit) {
    Images images = read_idx_images(options.name, folder, split);
    images.mean = {mean};
    images.std = {std};
    return std::make_shared<ImageDataset>(std::move(images), limit);
  };
  return {.train = open(Split::kTrain, options.limit),
          .validation = open(Split::kTest, 0),
          .state = {}};
}

DatasetPair open_mnist(const DataOptions& options) { return open_idx(options, 0.1307, 0.3081); }

DatasetPair open_fashion_mnist(const DataOptions& given) {
  DataOptions options = given;
  if (options.path.empty()) {
    options.path = kDebianFashionMnist;
    std::error_code error;
    if (!std::filesystem::is_directory(options.path, error)) {
      throw base::DataError("[fashion-mnist] no path was given and '" + options.path +
                            "' does not exist; install it with 'apt-get install "
                            "dataset-fashion-mnist', or give the folder of the four files.");
    }
  }
  return open_idx(options, 0.2860, 0.3530);
}

DatasetPair open_cifar10(const DataOptions& options) {
  const std::filesystem::path folder =
      need_folder(options, "the folder of data_batch_1.bin to data_batch_5.bin and test_batch.bin");
  const auto open = [&](Split split, int64_t limit) {
    return std::make_shared<ImageDataset>(read_cifar10(folder, split), limit);
  };
  return {.train = open(Split::kTrain, options.limit),
          .validation = open(Split::kTest, 0),
          .state = {}};
}

DatasetPair open_text_file(const DataOptions& options) {
  need_path(options, "a text file");
  return open_text(options);
}

DatasetPair open_synthetic(const DataOptions& options) {
  const SyntheticShape& shape = options.synthetic;
  const auto open = [&](int64_t size, uint64_t split) {
    return shape.tokens ? make_synthetic_tokens(options.context, options.vocab_size, size,
                                                options.seed, split)
                        : make_synthetic(shape, size, options.seed, split);
  };
  int64_t num_train = shape.num_train;
  if (options.limit > 0 && options.limit < num_train) num_train = options.limit;
  return {.train = open(num_train, 0), .validation = open(shape.num_validation, 1), .state = {}};
}

struct Format {
  const char* name;
  DatasetPair (*open)(const DataOptions&);
};

constexpr std::array kFormats = {
    Format{"mnist", open_mnist},         Format{"fashion-mnist", open_fashion_mnist},
    Format{"cifar10", open_cifar10},     Format{"text", open_text_file},
    Format{"synthetic", open_synthetic},
};

}  // namespace

Dataset::~Dataset() = default;

const std::vector<std::string>& dataset_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> list;
    for (const Format& format : kFormats) list.emplace_back(format.name);
    return list;
  }();
  return names;
}

DatasetPair open_dataset(const DataOptions& options) {
  if (options.limit < 0) {
    throw base::UsageError("[data] limit is " + std::to_string(options.limit) +
                           "; 1 or more, or 0 for all examples, is accepted.");
  }
  for (const Format& format : kFormats) {
    if (options.name == format.name) return format.open(options);
  }
  std::string accepted;
  for (const std::string& name : dataset_names()) accepted += (accepted.empty() ? "" : ", ") + name;
  throw base::UsageError("[data] there is no data set '" + options.name + "'; " + accepted +
                         " are accepted.");
}

}  // namespace torchamp::train
