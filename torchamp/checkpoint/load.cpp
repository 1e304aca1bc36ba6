#include <string>
#include <string_view>

#include "torchamp/checkpoint/checkpoint.h"
#include "torchamp/checkpoint/file_kind.h"
#include "torchamp/checkpoint/format_error.h"
#include "torchamp/checkpoint/input_file.h"
#include "torchamp/checkpoint/legacy_reader.h"
#include "torchamp/checkpoint/rebuild.h"
#include "torchamp/checkpoint/storage_reader.h"
#include "torchamp/checkpoint/unpickler.h"
#include "torchamp/checkpoint/zip_reader.h"

namespace torchamp::checkpoint {
namespace {

using base::StateDict;
using base::Value;

// Says what a file is that is neither a zip archive nor of the format before.
[[noreturn]] void refuse(const InputFile& file, FileKind kind) {
  refuse_pointer(file);
  if (kind == FileKind::kSafetensors) {
    throw FormatError(
        "the file looks like safetensors, or is named so; a .pt file of torch.save is expected. "
        "load_safetensors() reads the other kind.");
  }
  if (file.size() == 0) {
    throw FormatError(
        "the file is empty; a zip archive is expected. Was the file truncated or damaged?");
  }
  constexpr std::string_view kTar = "ustar";
  constexpr uint64_t kTarAt = 257;
  if (file.size() >= kTarAt + kTar.size() && file.read_at(kTarAt, kTar.size()) == kTar) {
    throw FormatError(
        "the file is a tar archive, as PyTorch 0.1 wrote its checkpoints; those of torch.save from "
        "0.4 on are expected. Load it in Python and torch.save it again.");
  }
  throw FormatError(
      "the file does not start as a zip archive does; a .pt file of torch.save is expected. Is it "
      "another kind of file?");
}

template <typename Build>
auto load_archive(const InputFile& file, StorageReader& reader, Build build) {
  const ZipReader archive(file);
  if (archive.contains("constants.pkl")) {
    throw FormatError(
        "the file is a TorchScript program (torch.jit.save, or C++ torch::save); a state_dict "
        "saved by torch.save is expected. Save module.state_dict() instead.");
  }
  const std::string pickle = archive.read("data.pkl");
  if (archive.contains("byteorder") && archive.read("byteorder") != "little") {
    throw FormatError(
        "the file was written on a big-endian machine; little-endian data is expected. Load it in "
        "Python on this machine and save it again.");
  }
  Unpickler machine(pickle);
  return build(machine.load(), pickle.size(),
               {[&](const std::string& key) { return archive.locate("data/" + key); }, reader});
}

template <typename Build>
auto load_legacy(const InputFile& file, StorageReader& reader, Build build) {
  const LegacyReader legacy(file);
  return build(legacy.root(), legacy.pickle_size(),
               {[&](const std::string& key) { return legacy.locate(key); }, reader});
}

// What `build`, one of rebuild.h, makes of `file`, its tensors still to be read.
template <typename Build>
auto load_unread(const InputFile& file, StorageReader& reader, Build build) {
  const FileKind kind = kind_of(file);
  if (kind == FileKind::kZip) return load_archive(file, reader, build);
  if (kind == FileKind::kLegacy) return load_legacy(file, reader, build);
  refuse(file, kind);
}

// What `build` makes of the file at `path`.
template <typename Build>
auto load_as(Build build, const std::filesystem::path& path, const LoadOptions& options) {
  return read_file("checkpoint::load", path, [&](InputFile& file) {
    StorageReader reader(file, options.mmap, options.verify.value_or(!options.mmap));
    auto result = load_unread(file, reader, build);
    reader.finish();
    return result;
  });
}

}  // namespace

Value load_value(const std::filesystem::path& path, const LoadOptions& options) {
  return load_as(rebuild, path, options);
}

StateDict load(const std::filesystem::path& path, const LoadOptions& options) {
  return load_as(rebuild_dict, path, options);
}

void verify(const std::filesystem::path& path) {
  read_file("checkpoint::verify", path, [](InputFile& file) {
    StorageReader mapped(file, /*is_mapped=*/true, /*is_verified=*/false);
    load_unread(file, mapped, rebuild);
    if (kind_of(file) != FileKind::kZip) return true;  // no checksums
    const ZipReader archive(file);
    StorageReader all(file, /*is_mapped=*/true, /*is_verified=*/true);
    for (const std::string& name : archive.names()) all.check(archive.locate(name));
    all.finish();
    return true;
  });
}

}  // namespace torchamp::checkpoint
