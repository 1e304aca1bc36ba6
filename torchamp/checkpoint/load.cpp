#include <string>
#include <string_view>

#include "torchamp/base/words.h"
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

using base::CheckpointError;
using base::StateDict;
using base::Value;

constexpr const char* kLoad = "checkpoint::load";

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

Value load_archive(const InputFile& file, StorageReader& reader) {
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
  return rebuild(machine.load(), pickle.size(),
                 {[&](const std::string& key) { return archive.locate("data/" + key); }, reader});
}

Value load_legacy(const InputFile& file, StorageReader& reader) {
  const LegacyReader legacy(file);
  return rebuild(legacy.root(), legacy.pickle_size(),
                 {[&](const std::string& key) { return legacy.locate(key); }, reader});
}

// The value of `file`, its tensors still to be read.
Value load_unread(const InputFile& file, StorageReader& reader) {
  const FileKind kind = kind_of(file);
  if (kind == FileKind::kZip) return load_archive(file, reader);
  if (kind == FileKind::kLegacy) return load_legacy(file, reader);
  refuse(file, kind);
}

}  // namespace

Value load_value(const std::filesystem::path& path, const LoadOptions& options) {
  return read_file(kLoad, path, [&](InputFile& file) {
    StorageReader reader(file, options.mmap, options.verify.value_or(!options.mmap));
    Value value = load_unread(file, reader);
    reader.finish();
    return value;
  });
}

StateDict load(const std::filesystem::path& path, const LoadOptions& options) {
  Value value = load_value(path, options);
  if (!value.is<StateDict>()) {
    throw CheckpointError(std::string("[") + kLoad + "] '" + path.string() +
                          "' cannot be read: the file holds " +
                          base::with_article(value.type_name()) +
                          "; a dict is expected. Save {'name': value} in Python.");
  }
  return value.to_dict();
}

void verify(const std::filesystem::path& path) {
  read_file("checkpoint::verify", path, [](InputFile& file) {
    StorageReader mapped(file, /*is_mapped=*/true, /*is_verified=*/false);
    load_unread(file, mapped);
    if (kind_of(file) != FileKind::kZip) return true;  // no checksums
    const ZipReader archive(file);
    StorageReader all(file, /*is_mapped=*/true, /*is_verified=*/true);
    for (const std::string& name : archive.names()) all.check(archive.locate(name));
    all.finish();
    return true;
  });
}

}  // namespace torchamp::checkpoint
