#include "torchamp/train/data/image_dataset.h"

#include <algorithm>
#include <utility>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include "torchamp/train/data/indices.h"

namespace torchamp::train {

ImageDataset::ImageDataset(Images images, int64_t limit) : images_(std::move(images)) {
  size_ = static_cast<int64_t>(images_.labels.size());
  if (limit > 0) size_ = std::min(size_, limit);
  info_ = {.name = images_.name,
           .input_shape = images_.shape,
           .input_dtype = at::kFloat,
           .num_classes = images_.num_classes,
           .is_text = false};
  for (size_t channel = 0; channel < images_.mean.size(); ++channel) {
    Table table;
    for (int pixel = 0; pixel < 256; ++pixel) {
      table[static_cast<size_t>(pixel)] =
          static_cast<float>((pixel / 255.0 - images_.mean[channel]) / images_.std[channel]);
    }
    value_of_.push_back(table);
  }
}

Batch ImageDataset::collate(const std::vector<int64_t>& indices) const {
  check_indices(indices, size_, info_.name);
  const auto rows = static_cast<int64_t>(indices.size());
  const std::vector<int64_t>& shape = images_.shape;
  Batch batch{at::empty({rows, shape[0], shape[1], shape[2]}, at::kFloat),
              at::empty({rows}, at::kLong)};
  float* input = batch.input.mutable_data_ptr<float>();
  int64_t* target = batch.target.mutable_data_ptr<int64_t>();
  const int64_t plane = shape[1] * shape[2];
  for (const int64_t index : indices) {
    const uint8_t* pixel = images_.pixels.data() + index * shape[0] * plane;
    for (const Table& table : value_of_) {
      for (int64_t i = 0; i < plane; ++i) *input++ = table[*pixel++];
    }
    *target++ = images_.labels[static_cast<size_t>(index)];
  }
  return batch;
}

}  // namespace torchamp::train
