#include <new>
#include <string>

#include <c10/util/Exception.h>

#include "torchamp/checkpoint/checkpoint.h"
#include "torchamp/checkpoint/format_error.h"
#include "torchamp/checkpoint/rebuild.h"
#include "torchamp/checkpoint/unpickler.h"
#include "torchamp/checkpoint/zip_reader.h"

namespace torchamp::checkpoint {
namespace {

using base::CheckpointError;
using base::StateDict;
using base::Value;

Value load_archive(const std::filesystem::path& path) {
  const ZipReader archive(path);
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
  return rebuild(machine.load(), archive, pickle.size());
}

// What `read` gives; errors name `path` and `who`.
template <typename Read>
auto told_by(const std::string& who, const std::filesystem::path& path, Read read) {
  const std::string start = "[" + who + "] '" + path.string() + "' cannot be read: ";
  try {
    return read();
  } catch (const FormatError& error) {
    throw CheckpointError(start + error.what());
  } catch (const c10::Error& error) {  // LibTorch's own text, without the backtrace
    const std::string text = error.what_without_backtrace();
    throw CheckpointError(start + text.substr(0, text.find('\n')));
  } catch (const std::bad_alloc&) {
    throw CheckpointError(start + "there is not enough memory for it.");
  }
}

}  // namespace

Value load_value(const std::filesystem::path& path, const LoadOptions&) {
  return told_by("checkpoint::load", path, [&] { return load_archive(path); });
}

StateDict load(const std::filesystem::path& path, const LoadOptions& options) {
  Value value = load_value(path, options);
  if (!value.is<StateDict>()) {
    throw CheckpointError("[checkpoint::load] '" + path.string() + "' cannot be read: the file holds a " +
                      value.type_name() + "; a dict is expected. Save {'name': value} in Python.");
  }
  return value.to_dict();
}

void verify(const std::filesystem::path& path) { load_value(path); }

}  // namespace torchamp::checkpoint
