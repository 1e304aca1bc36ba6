#pragma once
// ImageDataset: labelled pictures held as bytes, one byte a pixel and channel, made float32 as
// batches are made. Where they come from is idx.h's and cifar.h's business.

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "torchamp/train/data/dataset.h"

namespace torchamp::train {

enum class Split { kTrain, kTest };

struct Images {
  std::string name;
  std::vector<int64_t> shape;   // C, H, W
  std::vector<uint8_t> pixels;  // [N, C, H, W]
  std::vector<uint8_t> labels;  // [N]
  int64_t num_classes = 0;
  std::vector<double> mean, std;  // a channel each, of pixel / 255
};

class ImageDataset : public Dataset {
 public:
  /// The first `limit` of `images`; 0 means all.
  ImageDataset(Images images, int64_t limit);

  int64_t size() const override { return size_; }
  const DatasetInfo& info() const override { return info_; }
  Batch collate(const std::vector<int64_t>& indices) const override;

 private:
  using Table = std::array<float, 256>;

  Images images_;
  DatasetInfo info_;
  int64_t size_;
  std::vector<Table> value_of_;  // by channel: the 256 values a pixel can become
};

}  // namespace torchamp::train
