#pragma once
// LegacyReader: the format that torch.save wrote before PyTorch 1.6: pickles one after another,
// then the storages. What the pickles hold is not its business.

#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>

#include "torchamp/checkpoint/input_file.h"
#include "torchamp/checkpoint/storage_reader.h"
#include "torchamp/checkpoint/unpickler.h"

namespace torchamp::checkpoint {

/// Finds the value and the storages of a legacy file. FormatError tells what is wrong with it.
class LegacyReader {
 public:
  /// Whether a file that starts with these bytes (32 or more, if it has as many) is one.
  static bool recognizes(std::string_view start);

  explicit LegacyReader(const InputFile& file);

  /// The value saved; lives as long as this object.
  const Node& root() const { return *root_; }
  /// Bytes of all pickles.
  size_t pickle_size() const { return machine_->position(); }
  /// Where a storage's bytes lie; FormatError when there is none of this key.
  Extent locate(const std::string& key) const;

 private:
  void read_pickles(const InputFile& file);
  void parse();
  void find_storages(const InputFile& file);

  std::string bytes_;  // the start of the file, with all pickles
  std::unique_ptr<Unpickler> machine_;
  const Node* root_ = nullptr;
  const Node* keys_ = nullptr;
  std::unordered_map<std::string, Extent> storages_;
};

}  // namespace torchamp::checkpoint
