#include "torchamp/checkpoint/legacy_reader.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "torchamp/base/state_dict.h"
#include "torchamp/checkpoint/format_error.h"
#include "torchamp/checkpoint/storage_id.h"

namespace torchamp::checkpoint {
namespace {

using Kind = Node::Kind;

constexpr const char* kDamaged = " Was the file truncated or damaged?";

// The first pickle: the int 0x1950a86a20f9469cfc6c.
constexpr std::string_view kMagic = "\x8a\x0al\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.";
constexpr int64_t kVersion = 1001;

std::string storage_name(const std::string& key) {
  return "storage '" + base::printable(key) + "'";
}

}  // namespace

bool LegacyReader::recognizes(std::string_view start) {
  constexpr size_t kProtocolBytes = 2;
  if (start.size() < kProtocolBytes || start[0] != '\x80') return false;
  constexpr size_t kFrameBytes = 9;  // from protocol 4 on
  return start.substr(kProtocolBytes).starts_with(kMagic) ||
         (start.size() > kProtocolBytes && start[kProtocolBytes] == '\x95' &&
          start.substr(std::min(start.size(), kProtocolBytes + kFrameBytes)).starts_with(kMagic));
}

LegacyReader::LegacyReader(const InputFile& file) {
  read_pickles(file);
  find_storages(file);
}

// Their size is told nowhere, so ever longer starts of the file are tried; all tries together cost
// little more than the last.
void LegacyReader::read_pickles(const InputFile& file) {
  for (uint64_t size = uint64_t{1} << 20;; size *= 8) {
    const bool is_all = size >= file.size();
    bytes_.clear();
    bytes_ = file.read_at(0, std::min(size, file.size()));
    try {
      parse();
      return;
    } catch (const CutOffError&) {
      if (is_all) throw;
    }
  }
}

void LegacyReader::parse() {
  machine_ = std::make_unique<Unpickler>(bytes_, "the file");
  machine_->load_next();  // the number, which recognizes() has seen
  const Node& version = machine_->load_next();
  if (version.kind != Kind::kInt || version.integer != kVersion) {
    throw FormatError("the file has the format before PyTorch 1.6 in another version; version " +
                      std::to_string(kVersion) + " is expected." + kDamaged);
  }
  // What machine wrote it: told for information alone. Where it is big-endian, items were turned
  // around as they were written, so all files hold little-endian ones.
  machine_->load_next();
  root_ = &machine_->load_next();
  keys_ = &machine_->load_next();
}

// After the pickles, for each key: how many items, in 8 bytes, and the items.
void LegacyReader::find_storages(const InputFile& file) {
  if (keys_->kind != Kind::kList) {
    throw FormatError("the file has no list of storages after the value; one is expected." +
                      std::string(kDamaged));
  }
  // Items are as large as the first mention says, as in Python.
  std::unordered_map<std::string, int64_t> item_bytes;
  for (const Node* storage : machine_->storages()) {
    const std::optional<StorageId> id = parse_storage_id(*storage);
    if (id && id->is_known()) item_bytes.emplace(id->key, id->item_bytes);
  }
  uint64_t at = machine_->position();
  for (const Node* key_node : keys_->items) {
    const std::string key(key_node->text);
    const auto known = item_bytes.find(key);
    if (key_node->kind != Kind::kString || known == item_bytes.end()) {
      throw FormatError(storage_name(key) +
                        " is in the file and no tensor over a dense storage uses it; storages "
                        "that the value names are expected. Is a tensor quantized, or the file "
                        "damaged?");
    }
    constexpr uint64_t kCountBytes = 8;
    int64_t count = 0;
    int64_t size = 0;
    file.read_at(at, &count, kCountBytes);
    at += kCountBytes;
    if (count < 0 || __builtin_mul_overflow(count, known->second, &size) ||
        static_cast<uint64_t>(size) > file.size() - at) {
      throw FormatError(storage_name(key) + " claims " + std::to_string(count) + " items of " +
                        std::to_string(known->second) + " bytes at byte " + std::to_string(at) +
                        "; " + std::to_string(file.size() - at) + " bytes are left." + kDamaged);
    }
    const Extent extent{storage_name(key), at, static_cast<uint64_t>(size), {}};
    if (!storages_.emplace(key, extent).second) {
      throw FormatError(storage_name(key) + " is in the file twice; one is expected." + kDamaged);
    }
    at += static_cast<uint64_t>(size);
  }
  if (at != file.size()) {
    throw FormatError("the file goes on for " + std::to_string(file.size() - at) +
                      " bytes after its last storage; none are expected. Were several values saved "
                      "to it?");
  }
}

Extent LegacyReader::locate(const std::string& key) const {
  const auto it = storages_.find(key);
  if (it == storages_.end()) {
    throw FormatError("the file has no " + storage_name(key) +
                      ", which its value names; torch.save writes all." + kDamaged);
  }
  return it->second;
}

}  // namespace torchamp::checkpoint
