#include "torchamp/checkpoint/safetensors.h"

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/ScalarTypeToTypeMeta.h>
#include <c10/core/Storage.h>
#include <c10/core/TensorImpl.h>

#include "torchamp/base/words.h"
#include "torchamp/checkpoint/atomic_file.h"
#include "torchamp/checkpoint/file_kind.h"
#include "torchamp/checkpoint/format_error.h"
#include "torchamp/checkpoint/input_file.h"
#include "torchamp/checkpoint/safetensors_header.h"
#include "torchamp/checkpoint/storage_reader.h"

namespace torchamp::checkpoint {
namespace {

using base::CheckpointError;
using base::StateDict;
using base::Value;
using safetensors::Header;

constexpr const char* kTruncated = " Was the file truncated, or is its download incomplete?";
constexpr const char* kLoad = "checkpoint::load_safetensors";
constexpr const char* kSave = "checkpoint::save_safetensors";

Header read_header(const InputFile& file, uint64_t* data_offset) {
  if (file.size() < safetensors::kLengthBytes) {
    throw FormatError("the file has " + std::to_string(file.size()) +
                      " bytes; the header's length, 8 bytes, is expected first." + kTruncated);
  }
  refuse_pointer(file);
  const uint64_t length = safetensors::header_length(file.read_at(0, safetensors::kLengthBytes));
  if (length > safetensors::kMaxHeaderBytes) {
    throw FormatError("its first 8 bytes announce a header of " + std::to_string(length) +
                      " bytes; at most 100000000 are accepted. Is this a safetensors file?");
  }
  const uint64_t behind_length = file.size() - safetensors::kLengthBytes;
  if (length > behind_length) {
    throw FormatError("its first 8 bytes announce a header of " + std::to_string(length) +
                      " bytes, and the file ends " + std::to_string(behind_length) +
                      " bytes after them; the whole header is expected." + kTruncated);
  }
  std::string json(length, '\0');
  file.read_at(safetensors::kLengthBytes, json.data(), json.size());
  *data_offset = safetensors::kLengthBytes + length;
  return safetensors::parse_header(json, behind_length - length);
}

StateDict read_tensors(InputFile& file, const LoadOptions& options) {
  uint64_t data_offset = 0;
  const Header header = read_header(file, &data_offset);
  StorageReader storages(file, options.mmap, /*is_verified=*/false);
  StateDict result;
  for (const safetensors::Tensor& entry : header.tensors) {
    const Extent extent = {.name = "tensor '" + base::printable(entry.name) + "'",
                           .offset = data_offset + entry.begin,
                           .size = entry.end - entry.begin,
                           .crc = {}};
    at::Tensor tensor = at::detail::make_tensor<at::TensorImpl>(
        storages.storage(extent, c10::elementSize(entry.dtype)),
        at::DispatchKeySet(at::DispatchKey::CPU), c10::scalarTypeToTypeMeta(entry.dtype));
    tensor.unsafeGetTensorImpl()->set_sizes_contiguous(entry.shape);
    result.set(entry.name, std::move(tensor));
  }
  storages.finish();
  return result;
}

// A tensor to write, and what the header says of it.
struct Item {
  safetensors::Tensor entry;
  const at::Tensor* tensor;
};

class Plan {
 public:
  Plan(const std::filesystem::path& path, const StateDict& tensors, const StateDict& metadata)
      : who_(std::string("[") + kSave + "] '" + path.string() + "' was not written: ") {
    for (const auto& [key, value] : metadata.entries()) {
      if (!std::holds_alternative<std::string>(key) || !value.is<std::string>()) {
        fail("metadata " + base::to_string(key) + " is " + base::with_article(value.type_name()) +
             "; a str under a str is accepted.");
      }
    }
    for (const auto& [key, value] : tensors.entries()) add(key, value);
    std::sort(items_.begin(), items_.end(), [](const Item& a, const Item& b) {
      const int left = *safetensors::rank_of(a.entry.dtype);
      const int right = *safetensors::rank_of(b.entry.dtype);
      return left != right ? left > right : a.entry.name < b.entry.name;
    });
    Header header;
    header.metadata = metadata;
    uint64_t end = 0;
    for (Item& item : items_) {
      item.entry.begin = end;
      end += item.tensor->nbytes();
      item.entry.end = end;
      header.tensors.push_back(item.entry);
    }
    try {
      json_ = safetensors::format_header(header);
    } catch (const FormatError& error) {
      fail(error.what());
    }
    if (json_.size() > safetensors::kMaxHeaderBytes) {
      fail("its header would have " + std::to_string(json_.size()) +
           " bytes; at most 100000000 are accepted. Are there more tensors than meant?");
    }
  }

  void write(AtomicFile& file) const {
    std::string length;
    for (size_t i = 0; i < safetensors::kLengthBytes; ++i) {
      length.push_back(static_cast<char>((json_.size() >> (8 * i)) & 0xFFU));
    }
    const uint64_t data_bytes = items_.empty() ? 0 : items_.back().entry.end;
    file.reserve(length.size() + json_.size() + data_bytes);
    file.write(length.data(), length.size());
    file.write(json_.data(), json_.size());
    for (const Item& item : items_) {
      const at::Tensor bytes = told_after(
          who_ + "tensor '" + base::printable(item.entry.name) +
              "' could not be copied to the CPU: ",
          [&] { return item.tensor->detach().resolve_conj().resolve_neg().contiguous().cpu(); });
      file.write(bytes.const_data_ptr(), bytes.nbytes());
    }
  }

 private:
  [[noreturn]] void fail(const std::string& reason) const { throw CheckpointError(who_ + reason); }

  void add(const StateDict::Key& key, const Value& value) {
    const std::string entry = "entry " + base::to_string(key);
    const auto* name = std::get_if<std::string>(&key);
    if (name == nullptr) fail(entry + " has an int as key; a str is accepted. Give it a name.");
    if (*name == safetensors::kMetadataName) {
      fail(entry +
           " has the name of the metadata; any other is accepted. Hand metadata over as "
           "such.");
    }
    if (!value.is<at::Tensor>()) {
      fail(entry + " is " + base::with_article(value.type_name()) +
           "; tensors alone are accepted. Take it out, or save a .pt file.");
    }
    const at::Tensor& tensor = std::get<at::Tensor>(value.storage());
    if (!tensor.defined()) fail(entry + " is an undefined tensor; a tensor with data is accepted.");
    if (tensor.layout() != at::kStrided || tensor.is_nested() || tensor.is_meta()) {
      fail(entry +
           " is a sparse, nested or meta tensor; strided ones are accepted. Use to_dense() "
           "before saving.");
    }
    if (!safetensors::rank_of(tensor.scalar_type())) {
      fail(entry + " is a tensor of " + c10::toString(tensor.scalar_type()) + "; one of " +
           safetensors::accepted_dtypes() + " is accepted. Convert it before saving.");
    }
    items_.push_back(
        {{.name = *name, .dtype = tensor.scalar_type(), .shape = tensor.sizes().vec()}, &tensor});
  }

  std::string who_;
  std::vector<Item> items_;
  std::string json_;
};

}  // namespace

bool is_safetensors(const std::filesystem::path& path) {
  // Who asks this is about to load it.
  return read_file("checkpoint::load", path,
                   [](const InputFile& file) { return kind_of(file) == FileKind::kSafetensors; });
}

StateDict load_safetensors(const std::filesystem::path& path, const LoadOptions& options) {
  return read_file(kLoad, path, [&](InputFile& file) { return read_tensors(file, options); });
}

StateDict safetensors_metadata(const std::filesystem::path& path) {
  return read_file("checkpoint::safetensors_metadata", path, [](const InputFile& file) {
    uint64_t data_offset = 0;
    return read_header(file, &data_offset).metadata;
  });
}

void save_safetensors(const std::filesystem::path& path, const StateDict& tensors,
                      const StateDict& metadata) {
  const Plan plan(path, tensors, metadata);  // first: what cannot be written touches no file
  AtomicFile file(path, kSave);
  plan.write(file);
  file.commit();
}

}  // namespace torchamp::checkpoint
