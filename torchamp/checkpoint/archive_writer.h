#pragma once
// The .pt archive around a pickle: which records torch.save writes, in which order.

#include <filesystem>

#include "torchamp/checkpoint/atomic_file.h"
#include "torchamp/checkpoint/pickler.h"

namespace torchamp::checkpoint {

/// Writes all records of `<path>` to `file`; commit() is left to the caller. Lets go of each
/// storage when it is written.
///
/// Errors: CheckpointError naming `path`.
void write_archive(Pickled pickled, const std::filesystem::path& path, AtomicFile& file);

}  // namespace torchamp::checkpoint
