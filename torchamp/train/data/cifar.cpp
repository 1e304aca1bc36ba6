#include "torchamp/train/data/cifar.h"

#include <string>
#include <system_error>
#include <vector>

#include "torchamp/base/error.h"
#include "torchamp/train/data/byte_file.h"

namespace torchamp::train {
namespace {

constexpr size_t kPixels = size_t{3} * 32 * 32;
constexpr size_t kRecord = 1 + kPixels;
constexpr int64_t kClasses = 10;

void append_records(const std::filesystem::path& path, Images& images) {
  ByteFile file("cifar10", path);
  const std::string bytes = file.read_all();
  if (bytes.empty() || bytes.size() % kRecord != 0) {
    const size_t whole = bytes.size() / kRecord;
    file.fail(bytes.size(), "ends after " + std::to_string(whole) + " whole records",
              "records of " + std::to_string(kRecord) +
                  " bytes, 1 or more, are expected, so that "
                  "one ends at byte " +
                  std::to_string((whole + 1) * kRecord) +
                  ". Was the download or the copy cut short?");
  }
  images.labels.reserve(images.labels.size() + bytes.size() / kRecord);
  images.pixels.reserve(images.pixels.size() + bytes.size() / kRecord * kPixels);
  for (size_t byte = 0; byte < bytes.size(); byte += kRecord) {
    const auto label = static_cast<uint8_t>(bytes[byte]);
    if (label >= kClasses) {
      file.fail(byte, "has the label " + std::to_string(label),
                "0 to 9 is expected. Is it CIFAR-100, or a file of another format?");
    }
    images.labels.push_back(label);
    const char* pixels = bytes.data() + byte + 1;
    images.pixels.insert(images.pixels.end(), pixels, pixels + kPixels);
  }
}

}  // namespace

Images read_cifar10(const std::filesystem::path& folder, Split split) {
  std::error_code error;
  const std::filesystem::path inner = folder / "cifar-10-batches-bin";
  const std::filesystem::path& place = std::filesystem::is_directory(inner, error) ? inner : folder;
  Images images;
  images.name = "cifar10";
  images.shape = {3, 32, 32};
  images.num_classes = kClasses;
  images.mean = {0.4914, 0.4822, 0.4465};
  images.std = {0.2470, 0.2435, 0.2616};
  if (split == Split::kTest) {
    append_records(place / "test_batch.bin", images);
  } else {
    for (int i = 1; i <= 5; ++i) {
      append_records(place / ("data_batch_" + std::to_string(i) + ".bin"), images);
    }
  }
  return images;
}

}  // namespace torchamp::train
