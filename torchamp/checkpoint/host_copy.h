#pragma once
// Storages on the CPU that nobody else writes to.

#include <filesystem>
#include <vector>

#include <c10/core/Storage.h>

namespace torchamp::checkpoint {

/// The bytes of `storage` in new memory of the CPU.
///
/// Errors: CheckpointError saying that the checkpoint `path` was not written.
at::Storage host_copy(const at::Storage& storage, const std::filesystem::path& path);

/// Puts a copy in the place of each storage that somebody besides `storages` could write to: that
/// has another owner, memory of another's, or lies on another device. Storages that were the same
/// are the same afterwards.
///
/// Memory: one copy of each such storage, whatever number of times it stands there.
/// Errors: as host_copy().
void detach_from_others(std::vector<at::Storage>& storages, const std::filesystem::path& path);

}  // namespace torchamp::checkpoint
