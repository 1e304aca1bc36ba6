// Bytes as a safetensors file: as they are, or, where the first byte is odd, as its header, with
// the length before it and data behind it.

#include <cstdint>
#include <string>
#include <string_view>

#include "checkpoint/archive.h"
#include "fuzz/harness.h"
#include "torchamp/checkpoint/safetensors.h"

namespace torchamp::fuzz {
namespace {

void check(const std::string& file) {
  const std::filesystem::path path = file_of(file);
  const size_t most_bytes = (size_t{40} << 20) + 600 * file.size();
  reads("is_safetensors", most_bytes, [&] { checkpoint::is_safetensors(path); });
  reads("safetensors_metadata", most_bytes, [&] { checkpoint::safetensors_metadata(path); });

  base::Value read;
  const bool has_read =
      reads("load_safetensors", most_bytes, [&] { read = checkpoint::load_safetensors(path); });
  if (has_read) use(read, file.size());

  base::Value mapped;
  const bool has_mapped = reads("load_safetensors mapped", most_bytes, [&] {
    mapped = checkpoint::load_safetensors(path, {.mmap = true});
  });
  if (has_mapped != has_read) fault("mapped", "what is accepted depends on the map");
  if (has_mapped) use(mapped, file.size());
  if (has_mapped && !same(read, mapped)) fault("mapped", "values depend on the map");
}

}  // namespace
}  // namespace torchamp::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace torchamp;  // NOLINT(google-build-using-namespace)
  if (size == 0) return 0;
  const std::string bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const bool is_header = data[0] % 2 != 0;
  fuzz::check(is_header ? little_endian(bytes.size(), 8) + bytes + std::string(96, '\x11') : bytes);
  return 0;
}
