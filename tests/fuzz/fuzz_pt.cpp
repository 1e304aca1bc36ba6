// Bytes as a .pt file. The first byte says how: as they are; as they are, with the archive's
// checksums mended; as the pickle of a well-formed archive; as the value of a file of the older
// format. The last three reach what checksums and headers keep random bytes away from.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "checkpoint/archive.h"
#include "fuzz/harness.h"
#include "torchamp/checkpoint/checkpoint.h"
#include "torchamp/checkpoint/crc32.h"
#include "torchamp/checkpoint/run_id.h"

namespace torchamp::fuzz {
namespace {

uint64_t number(std::string_view bytes, size_t offset, size_t count) {
  uint64_t value = 0;
  for (size_t i = 0; i < count; ++i) {
    value |= uint64_t{static_cast<unsigned char>(bytes[offset + i])} << (8 * i);
  }
  return value;
}

// Gives every record that the directory names, and that lies in the file, the checksum of its data.
std::string mend_checksums(std::string file) {
  for (size_t at = file.find("PK\x01\x02"); at != std::string::npos && at + 46 <= file.size();
       at = file.find("PK\x01\x02", at + 4)) {
    const size_t local = number(file, at + 42, 4);
    const size_t size = number(file, at + 20, 4);
    if (local + 30 > file.size()) continue;
    const size_t data = local + 30 + number(file, local + 26, 2) + number(file, local + 28, 2);
    if (data > file.size() || size > file.size() - data) continue;
    const std::string crc = little_endian(checkpoint::crc32(0, file.data() + data, size), 4);
    file.replace(at + 16, 4, crc);
    const bool is_streamed = (number(file, local + 6, 2) & 8) != 0;  // PyTorch's way
    if (!is_streamed) file.replace(local + 14, 4, crc);
    const size_t after = data + size;
    if (is_streamed && after + 8 <= file.size()) file.replace(after + 4, 4, crc);
  }
  return file;
}

// A zip archive of data.pkl and the storages that the seeds' pickles ask for.
std::string archive_of(std::string_view pickle) {
  static const Records storages = [] {
    Records records;
    for (int i = 0; i < 24; ++i) {
      std::string bytes;
      for (int k = 0; k < 96; ++k) bytes.push_back(static_cast<char>(i + k));
      records.emplace_back("data/" + std::to_string(i), bytes);
    }
    records.emplace_back("version", "3\n");
    return records;
  }();
  Records records = storages;
  records.emplace_back("data.pkl", pickle);
  return make_archive(records);
}

// The three pickles that a file of the older format starts with: a number, the version, and what
// the machine was like; the value, the storages' keys and their bytes follow.
std::string legacy_of(std::string_view rest) {
  using std::string_literals::operator""s;
  return "\x80\x02\x8a\x0al\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.\x80\x02M\xe9\x03.\x80\x02}q\x00("s
         "X\x10\0\0\0protocol_versionq\x01M\xe9\x03X\r\0\0\0little_endianq\x02\x88"s
         "X\n\0\0\0type_sizesq\x03}q\x04(X\x05\0\0\0shortq\x05K\x02X\x03\0\0\0intq\x06K\x04"s
         "X\x04\0\0\0longq\x07K\x04uu."s +
         std::string(rest);
}

// The run that the value of a whole file tells; "" where it tells none.
std::string run_id_in(const base::Value& value) {
  const auto dict_at = [](const base::StateDict* dict, const char* key) {
    const base::Value* entry = dict == nullptr ? nullptr : dict->find(key);
    return entry == nullptr ? nullptr : std::get_if<base::StateDict>(&entry->storage());
  };
  const auto* root = std::get_if<base::StateDict>(&value.storage());
  const base::StateDict* manager = dict_at(root, checkpoint::kManagerKey);
  const base::Value* id = manager == nullptr ? nullptr : manager->find(checkpoint::kRunIdKey);
  const auto* text = id == nullptr ? nullptr : std::get_if<std::string>(&id->storage());
  return text != nullptr && checkpoint::is_run_id(*text) ? *text : "";
}

void check(const std::string& file) {
  const std::filesystem::path path = file_of(file);
  // The reader's own budget: 16 MiB and 256 bytes for a byte of pickle, beside nodes and data.
  const size_t most_bytes = (size_t{40} << 20) + 600 * file.size();

  base::Value read;
  const bool has_read =
      reads("load_value", most_bytes, [&] { read = checkpoint::load_value(path); });
  if (has_read) {
    use(read, file.size());
    reads("load", 2 * most_bytes, [&] { checkpoint::load(path); });
  }

  base::Value mapped;
  const bool has_mapped = reads("load_value mapped and verified", most_bytes, [&] {
    mapped = checkpoint::load_value(path, {.mmap = true, .verify = true});
  });
  if (has_mapped != has_read) fault("mapped", "what is accepted depends on the map");
  if (has_mapped) use(mapped, file.size());
  if (has_mapped && !same(read, mapped)) fault("mapped", "values depend on the map");
  mapped = {};

  const bool has_trusted = reads("load_value mapped", most_bytes,
                                 [&] { mapped = checkpoint::load_value(path, {.mmap = true}); });
  if (has_trusted) use(mapped, file.size());
  if (has_read && !has_trusted) fault("mapped", "what is right is refused unless verified");
  mapped = {};

  // Of a file that does not load, too.
  std::optional<std::string> run_id;
  reads("run_id_of", most_bytes, [&] { run_id = checkpoint::run_id_of(path); });
  if (has_read && file.starts_with("PK\x03\x04")) {
    if (!run_id) fault("run_id_of", "a file that loads cannot be asked for its run");
    if (!run_id->empty() && *run_id != run_id_in(read)) {
      fault("run_id_of", "a file that loads is said to be of another run");
    }
  }
  if (run_id && !run_id->empty() && !checkpoint::is_run_id(*run_id)) {
    fault("run_id_of", "another text than a run's is taken for one");
  }

  const bool is_good = reads("verify", most_bytes, [&] { checkpoint::verify(path); });
  if (is_good && !has_read) fault("verify", "a file that does not load is called good");
}

}  // namespace
}  // namespace torchamp::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace torchamp::fuzz;  // NOLINT(google-build-using-namespace)
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 4) {
    case 0:
      check(std::string(bytes));
      break;
    case 1:
      check(mend_checksums(std::string(bytes)));
      break;
    case 2:
      check(archive_of(bytes));
      break;
    default:
      check(legacy_of(bytes));
  }
  return 0;
}
