#pragma once
// The binary version of CIFAR-10.

#include <filesystem>

#include "torchamp/train/data/image_dataset.h"

namespace torchamp::train {

/// Reads data_batch_1.bin to data_batch_5.bin, or test_batch.bin, from `folder` or from the
/// cifar-10-batches-bin in it, which is how the archive unpacks.
///
/// Format: records of 3073 bytes, one label and 32x32 bytes of red, of green, of blue; no header.
/// Errors: DataError naming file, byte and what was expected.
/// Source: A. Krizhevsky, "Learning multiple layers of features from tiny images", 2009.
Images read_cifar10(const std::filesystem::path& folder, Split split);

}  // namespace torchamp::train
