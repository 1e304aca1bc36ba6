#include "torchamp/train/data/idx.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <system_error>
#include <vector>

#include "torchamp/base/error.h"
#include "torchamp/train/data/byte_file.h"

namespace torchamp::train {
namespace {

constexpr int64_t kSide = 28;
constexpr int64_t kClasses = 10;

std::string as_hex(uint32_t magic) {
  std::array<char, 12> text{};
  std::snprintf(text.data(), text.size(), "0x%08X", magic);
  return text.data();
}

uint32_t read_word(ByteFile& file, const std::string& expected) {
  std::array<uint8_t, 4> byte{};
  file.read(byte.data(), byte.size(), expected);
  return uint32_t{byte[0]} << 24 | uint32_t{byte[1]} << 16 | uint32_t{byte[2]} << 8 | byte[3];
}

// The bytes of an IDX file whose extents after the first are `item_extents`; `items` is what it
// holds.
std::vector<uint8_t> read_idx(ByteFile& file, const std::vector<int64_t>& item_extents,
                              const std::string& items) {
  const size_t dimensions = item_extents.size() + 1;
  const uint32_t wanted = 0x800U | static_cast<uint32_t>(dimensions);
  const uint32_t magic = read_word(file, "the magic number of an IDX file");
  if (magic != wanted) {
    file.fail(0, "has the magic number " + as_hex(magic),
              as_hex(wanted) + " is expected for " + items +
                  ((magic & 0xFFFFFFF0U) == 0x800U ? ". Are pictures and labels mixed up?"
                                                   : ". Is it a file of another format?"));
  }

  const uint32_t count = read_word(file, "the number of " + items);
  uint64_t item_bytes = 1;
  for (const int64_t extent : item_extents) {
    const uint64_t byte = file.offset();
    const uint32_t came = read_word(file, "the size of the " + items);
    if (came != static_cast<uint32_t>(extent)) {
      file.fail(byte, "has " + items + " of extent " + std::to_string(came),
                std::to_string(extent) + " is expected. Is it another data set?");
    }
    item_bytes *= static_cast<uint64_t>(extent);
  }

  const uint64_t size = count * item_bytes;  // below 2^32 * 28 * 28
  if (size > file.max_remaining()) {
    const std::string room = std::to_string(file.max_remaining());
    file.fail(4, "declares " + std::to_string(count) + " " + items,
              std::to_string(size) + " bytes are expected after the header, where at most " + room +
                  " follow. Was the download or the copy cut short?");
  }
  std::vector<uint8_t> bytes(size);
  file.read(bytes.data(), size, "the data of " + std::to_string(count) + " " + items);
  file.expect_end("a file of " + std::to_string(count) + " " + items);
  return bytes;
}

// `part` is "train-images" or such, `type` "idx3" or "idx1".
std::filesystem::path find_idx(const std::string& name, const std::filesystem::path& folder,
                               const std::string& part, const std::string& type) {
  for (const char* separator : {"-", "."}) {
    for (const char* suffix : {"", ".gz"}) {
      std::filesystem::path path = folder / (part + separator + type + "-ubyte" + suffix);
      std::error_code error;
      if (std::filesystem::exists(path, error)) return path;
    }
  }
  throw base::DataError("[" + name + "] '" + folder.string() + "' has no " + part + "-" + type +
                        "-ubyte, also not as " + part + "." + type +
                        "-ubyte or with .gz; the four files of the data set are expected in one "
                        "folder.");
}

}  // namespace

Images read_idx_images(const std::string& name, const std::filesystem::path& folder, Split split) {
  const std::string set = split == Split::kTrain ? "train" : "t10k";
  ByteFile label_file(name, find_idx(name, folder, set + "-labels", "idx1"));
  ByteFile pixel_file(name, find_idx(name, folder, set + "-images", "idx3"));

  Images images;
  images.name = name;
  images.shape = {1, kSide, kSide};
  images.num_classes = kClasses;
  images.labels = read_idx(label_file, {}, "labels");
  images.pixels = read_idx(pixel_file, {kSide, kSide}, "pictures");

  constexpr uint64_t kLabelHeader = 8;
  const uint64_t pictures = images.pixels.size() / (kSide * kSide);
  if (images.labels.size() != pictures) {
    label_file.fail(4, "declares " + std::to_string(images.labels.size()) + " labels",
                    std::to_string(pictures) + " are expected, as many as pictures in '" +
                        pixel_file.path().string() +
                        "'. Do the two files come from different data sets?");
  }
  if (pictures == 0) {
    pixel_file.fail(4, "declares 0 pictures", "1 or more is expected.");
  }
  const auto wrong = std::find_if(images.labels.begin(), images.labels.end(),
                                  [](uint8_t label) { return label >= kClasses; });
  if (wrong != images.labels.end()) {
    label_file.fail(kLabelHeader + static_cast<uint64_t>(wrong - images.labels.begin()),
                    "has the label " + std::to_string(*wrong),
                    "0 to 9 is expected. Is it another data set?");
  }
  return images;
}

}  // namespace torchamp::train
