#include "torchamp/checkpoint/run_id.h"

#include <algorithm>
#include <cstdint>
#include <new>
#include <random>

#include "torchamp/base/error.h"
#include "torchamp/checkpoint/file_kind.h"
#include "torchamp/checkpoint/format_error.h"
#include "torchamp/checkpoint/input_file.h"
#include "torchamp/checkpoint/unpickler.h"
#include "torchamp/checkpoint/zip_format.h"
#include "torchamp/checkpoint/zip_reader.h"

namespace torchamp::checkpoint {
namespace {

constexpr size_t kDigits = 32;
constexpr std::string_view kHex = "0123456789abcdef";

const Node* find(const Node& dict, std::string_view key) {
  if (dict.kind != Node::Kind::kDict) return nullptr;
  for (size_t i = dict.items.size(); i >= 2; i -= 2) {  // of several, the last counts
    const Node& name = *dict.items[i - 2];
    if (name.kind == Node::Kind::kString && name.text == key) return dict.items[i - 1];
  }
  return nullptr;
}

std::string run_id_in(const Node& root) {
  const Node* manager = find(root, kManagerKey);
  const Node* id = manager == nullptr ? nullptr : find(*manager, kRunIdKey);
  const bool is_there = id != nullptr && id->kind == Node::Kind::kString && is_run_id(id->text);
  return is_there ? std::string(id->text) : "";
}

// The pickle stands first, so it is there even where the end of the file is not.
std::string first_record(const InputFile& file) {
  constexpr uint64_t kMost = uint64_t{16} << 20;  // pickles of real models are smaller
  const std::string header = file.read_at(0, zip::kLocalHeaderBytes);
  const auto u16 = [&](size_t at) {
    return static_cast<uint64_t>(static_cast<unsigned char>(header[at])) |
           static_cast<uint64_t>(static_cast<unsigned char>(header[at + 1])) << 8U;
  };
  if (!header.starts_with("PK\x03\x04")) throw FormatError("it is no zip archive");
  const uint64_t name_size = u16(26);
  const uint64_t start = zip::kLocalHeaderBytes + name_size + u16(28);
  if (!file.read_at(zip::kLocalHeaderBytes, name_size).ends_with("/data.pkl")) {
    throw FormatError("the pickle does not stand first");
  }
  return file.read_at(start, std::min(file.size() - std::min(file.size(), start), kMost));
}

std::string run_id_of(const InputFile& file) {
  if (kind_of(file) == FileKind::kLegacy) return "";  // never written by a manager
  std::optional<ZipReader> archive;
  try {
    archive.emplace(file);
  } catch (const FormatError&) {
    archive.reset();  // its end is missing
  }
  const std::string pickle = archive ? archive->read("data.pkl") : first_record(file);
  Unpickler machine(pickle);
  return run_id_in(archive ? machine.load() : machine.load_next());
}

}  // namespace

std::string new_run_id() {
  std::random_device source;
  std::string id;
  while (id.size() < kDigits) {
    uint32_t bits = source();
    for (int i = 0; i < 8; ++i, bits >>= 4U) id += kHex[bits & 15U];
  }
  return id;
}

bool is_run_id(std::string_view text) {
  return text.size() == kDigits && text.find_first_not_of(kHex) == std::string_view::npos;
}

std::optional<std::string> run_id_of(const std::filesystem::path& path) {
  try {
    return run_id_of(InputFile(path, "run_id_of"));
  } catch (const FormatError&) {
    return std::nullopt;
  } catch (const base::CheckpointError&) {
    return std::nullopt;
  } catch (const std::bad_alloc&) {
    return std::nullopt;
  }
}

}  // namespace torchamp::checkpoint
