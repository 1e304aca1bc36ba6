#pragma once
// Checkpoint files: a StateDict to and from a .pt file that Python reads and writes. What the
// entries mean is the caller's business.

#include <filesystem>
#include <optional>

#include "torchamp/base/export.h"
#include "torchamp/base/state_dict.h"

namespace torchamp::checkpoint {

/// Writes `dict` to `path` as torch.save would, in one atomic step.
///
/// torch.load(path, weights_only=True) gives plain dict, list, tuple, int, float, bool, None, str
/// and tensors. The bytes go to `<path>.partial` beside it, to the disk, and only then take the
/// name `path`: whatever happens, `path` holds the old checkpoint or the new one. A process killed
/// meanwhile may leave the .partial file; the next save uses it up. Two writers of one path take
/// turns. A symbolic link is followed.
///
/// Shapes:  any, any strides. Tensors that share a storage share it in the file; a storage is
///          written whole and once, so clone() a small view of a large tensor first.
/// Dtypes:  all that torch.save writes. requires_grad is written as false.
/// Devices: any with a strided storage; written as CPU tensors, so that any machine reads them.
///          Undefined tensors are written as None.
/// Errors:  CheckpointError naming file and cause (full disk, missing folder, ...), or the entry
///          that a .pt file cannot hold; nothing is left behind and the previous file is intact.
/// Source:  torch/serialization.py, `_save`.
TORCHAMP_API void save(const std::filesystem::path& path, const base::StateDict& dict);

/// Finds out before hours of work whether save() could write a file at `path`; leaves nothing
/// there.
///
/// Errors: CheckpointError, as save() would throw it before the first byte.
TORCHAMP_API void check_can_save(const std::filesystem::path& path);

/// How a file is read.
struct LoadOptions {
  /// Tensors are views of a private map of the file: it opens at once and only what is used is
  /// read. Writing to a tensor never reaches the file. See load() for what may happen to the file
  /// then.
  bool mmap = false;
  /// Whether the checksums of tensor data are checked; absent: unless `mmap`, as that would read
  /// all. The pickle and the directory are always checked.
  std::optional<bool> verify = std::nullopt;
};

/// Reads a .pt file written by save(), or by torch.save of any PyTorch since 0.4, in the zip format
/// or the one before.
///
/// The pickle in the file is read by a machine that knows only what weights_only=True allows, and
/// numpy scalars, numpy arrays, defaultdict and Counter as data. It builds nothing but values: no
/// file can make it execute code. OrderedDict, defaultdict and Counter are read as dict, torch.Size
/// as tuple, frozenset as set, bytearray as bytes, Parameter and numpy array as tensor, numpy
/// scalars as bool, int, float, complex, bytes or str.
///
/// With `mmap`, a save() to the same path is harmless, as it makes a new file; a program that
/// truncates the mapped file in place ends this process by SIGBUS at the next use of a tensor.
/// Storages that are not aligned in the file for their dtype (torch.save aligns them) are copied.
///
/// Devices: tensors come back on the CPU, wherever they were saved.
/// Memory:  in proportion to the file's size, whatever the file claims.
/// Errors:  CheckpointError naming the file, what was found and what was expected; for an entry
///          of another kind its key and type; when the file's value is not a dict.
/// Source:  torch/serialization.py, `_load`, `_legacy_load`; torch/_weights_only_unpickler.py.
TORCHAMP_API base::StateDict load(const std::filesystem::path& path,
                                  const LoadOptions& options = {});

/// As load(), of a file that holds any value: a tensor or a list, say.
TORCHAMP_API base::Value load_value(const std::filesystem::path& path,
                                    const LoadOptions& options = {});

/// Checks a file: the pickle, every tensor's place and, in the zip format, every checksum there is,
/// for which all of the file is read. The format before has no checksums; there data that was
/// changed in place is not found. Holds no tensor data in memory.
///
/// Errors: CheckpointError, as load() throws it.
TORCHAMP_API void verify(const std::filesystem::path& path);

}  // namespace torchamp::checkpoint
