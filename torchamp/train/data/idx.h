#pragma once
// The IDX files of MNIST and of the data sets that took over its format.

#include <filesystem>
#include <string>

#include "torchamp/train/data/image_dataset.h"

namespace torchamp::train {

/// Reads 28x28 pictures and their labels 0 to 9 from `folder`: {train,t10k}-images-idx3-ubyte and
/// -labels-idx1-ubyte, also spelt -images.idx3-ubyte, also with .gz.
///
/// Format: 00 00 08 D, then D big-endian 32-bit extents, then unsigned bytes, the last extent
///         varying fastest.
/// Errors: DataError naming file, byte and what was expected.
/// Source: Y. LeCun, C. Cortes, C. Burges, "The MNIST database of handwritten digits".
Images read_idx_images(const std::string& name, const std::filesystem::path& folder, Split split);

}  // namespace torchamp::train
