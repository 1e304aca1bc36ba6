#pragma once
// What differs between two checkpoints: entries, types, shapes, dtypes, values.

#include "cli/checkpoint_file.h"

namespace torchamp::cli {

struct DiffOptions {
  bool json = false;
  bool all = false;    // show every difference
  bool values = true;  // compare the data of tensors
};

/// Prints what differs from `a` to `b`; returns whether anything does.
bool print_diff(const CheckpointFile& a, const CheckpointFile& b, const DiffOptions& options);

}  // namespace torchamp::cli
