#pragma once
// What a file is, by its first bytes, and by its name where they tell nothing.

#include "torchamp/checkpoint/input_file.h"

namespace torchamp::checkpoint {

enum class FileKind {
  kZip,          // zip_reader.h
  kLegacy,       // legacy_reader.h
  kSafetensors,  // safetensors_header.h
  kOther,
};

/// A file named *.safetensors that begins as no other kind is a safetensors file, a damaged one
/// say.
FileKind kind_of(const InputFile& file);

/// FormatError when the file is a Git LFS pointer, which stands in the place of a file of any kind.
void refuse_pointer(const InputFile& file);

}  // namespace torchamp::checkpoint
