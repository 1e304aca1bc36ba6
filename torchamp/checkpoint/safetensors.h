#pragma once
// safetensors files: names to tensors, and a few strings beside them, to and from disk.

#include <filesystem>

#include "torchamp/base/export.h"
#include "torchamp/base/state_dict.h"
#include "torchamp/checkpoint/checkpoint.h"

namespace torchamp::checkpoint {

/// Whether the file at `path` is a safetensors file, whole or damaged: it begins as one does, or is
/// named *.safetensors and begins as no .pt file does.
///
/// Errors: CheckpointError when there is no such file, or it cannot be read.
TORCHAMP_API bool is_safetensors(const std::filesystem::path& path);

/// Reads a safetensors file: names to tensors, in the order of their data.
///
/// Everything that the format demands of the header is checked before any data is read: its size,
/// JSON without repeated names, known dtypes, shapes that fit their bytes, data without holes and
/// overlaps up to the file's end. The format has no checksums, so `options.verify` changes nothing.
/// With `options.mmap` tensors are views of the file as in load(); those that do not lie aligned
/// for their dtype are copied.
///
/// Dtypes:  all of the format but those below a byte (F4, F6_E2M3, F6_E3M2).
/// Devices: tensors come back on the CPU.
/// Memory:  in proportion to the file's size, whatever the file claims.
/// Errors:  CheckpointError naming the file, what was found and what was expected.
/// Source:  github.com/huggingface/safetensors, README "Format" and safetensors/src/tensor.rs.
TORCHAMP_API base::StateDict load_safetensors(const std::filesystem::path& path,
                                              const LoadOptions& options = {});

/// The strings under `__metadata__` of a safetensors file; empty when it has none.
///
/// Errors: CheckpointError, as load_safetensors() throws it for a faulty header.
TORCHAMP_API base::StateDict safetensors_metadata(const std::filesystem::path& path);

/// Writes names to tensors as `safetensors.torch.save_file` does, byte for byte, in one atomic step
/// as save() does.
///
/// Shapes:  any, any strides; written contiguous. The format knows no sharing: tensors that share
///          a storage are each written whole.
/// Dtypes:  all but complex32, complex128 and quantized ones.
/// Devices: any with strided data.
/// Errors:  CheckpointError naming the entry that a safetensors file cannot hold (a dict, a number,
///          a sparse tensor, ...), before anything is written; else as save().
TORCHAMP_API void save_safetensors(const std::filesystem::path& path,
                                   const base::StateDict& tensors,
                                   const base::StateDict& metadata = {});

}  // namespace torchamp::checkpoint
