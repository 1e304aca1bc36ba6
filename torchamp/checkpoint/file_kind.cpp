#include "torchamp/checkpoint/file_kind.h"

#include <algorithm>
#include <cctype>
#include <string>
#include <string_view>

#include "torchamp/checkpoint/legacy_reader.h"
#include "torchamp/checkpoint/safetensors_header.h"
#include "torchamp/checkpoint/zip_reader.h"

namespace torchamp::checkpoint {
namespace {

std::string start_of(const InputFile& file) {
  constexpr uint64_t kStart = 64;  // bytes that tell what a file is
  return file.read_at(0, std::min(file.size(), kStart));
}

bool begins_as_safetensors(std::string_view start) {
  constexpr size_t kAt = safetensors::kLengthBytes;
  if (start.size() <= kAt || start[kAt] != '{') return false;
  // A wrong length does not hide what follows.
  const bool goes_on = start.size() > kAt + 1 && (start[kAt + 1] == '"' || start[kAt + 1] == '}');
  return goes_on || safetensors::header_length(start) <= safetensors::kMaxHeaderBytes;
}

bool is_named_safetensors(const InputFile& file) {
  std::string extension = file.path().extension().string();
  std::transform(extension.begin(), extension.end(), extension.begin(),
                 [](unsigned char letter) { return std::tolower(letter); });
  return extension == ".safetensors";
}

}  // namespace

FileKind kind_of(const InputFile& file) {
  const std::string start = start_of(file);
  if (ZipReader::recognizes(start)) return FileKind::kZip;
  if (LegacyReader::recognizes(start)) return FileKind::kLegacy;
  const bool is_safetensors = begins_as_safetensors(start) || is_named_safetensors(file);
  return is_safetensors ? FileKind::kSafetensors : FileKind::kOther;
}

void refuse_pointer(const InputFile& file) {
  if (!start_of(file).starts_with("version https://git-lfs")) return;
  throw FormatError(
      "the file is a Git LFS pointer; the checkpoint itself is expected. Was 'git lfs pull' "
      "forgotten?");
}

}  // namespace torchamp::checkpoint
