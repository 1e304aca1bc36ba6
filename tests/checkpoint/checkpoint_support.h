#pragma once
// What the checkpoint tests share: bit-for-bit equality of values, files in memory, and the little
// training of tests/golden/checkpoint/make_checkpoints.py.

#include <cstring>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <string_view>

#include <sys/mman.h>
#include <unistd.h>

#include <torch/torch.h>

#include "support/temporary_folder.h"
#include "torchamp/base/state_dict.h"

namespace torchamp {

// A file that lies in memory alone, for tests that rewrite it many thousand times.
class MemoryFile {
 public:
  MemoryFile() : descriptor_(::memfd_create("torchamp", MFD_CLOEXEC)) {
    if (descriptor_ < 0) throw std::runtime_error("cannot make a file in memory");
  }
  ~MemoryFile() { ::close(descriptor_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  void write(std::string_view bytes) {
    if (::ftruncate(descriptor_, 0) != 0 || ::pwrite(descriptor_, bytes.data(), bytes.size(), 0) !=
                                                static_cast<ssize_t>(bytes.size())) {
      throw std::runtime_error("cannot write a file in memory");
    }
  }
  std::filesystem::path path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }

 private:
  int descriptor_;
};

// A file of tests/golden.
inline std::string golden(const std::string& name) { return TORCHAMP_GOLDEN_DIR "/" + name; }

// Linear(3, 2) and BatchNorm1d(2), as that script has them.
inline torch::nn::Sequential model() {
  return torch::nn::Sequential(torch::nn::Linear(3, 2), torch::nn::BatchNorm1d(2));
}

// Every parameter's gradient at this step: -2, -1, 0, 1, 2, -2, ... times (step + 1) / 8.
inline void set_gradients(torch::nn::Sequential& net, int step) {
  for (at::Tensor& parameter : net->parameters()) {
    const at::Tensor values = torch::arange(parameter.numel()).remainder(5) - 2;
    parameter.mutable_grad() =
        (values * ((step + 1) / 8.0)).reshape(parameter.sizes()).to(at::kFloat);
  }
}

// Same dtype, shape and bits; NaN equals itself.
inline bool same(const at::Tensor& a, const at::Tensor& b) {
  if (a.defined() != b.defined()) return false;
  if (!a.defined()) return true;
  if (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes()) return false;
  const at::Tensor left = a.detach().cpu().resolve_conj().contiguous();
  const at::Tensor right = b.detach().cpu().resolve_conj().contiguous();
  return left.nbytes() == 0 ||
         std::memcmp(left.const_data_ptr(), right.const_data_ptr(), left.nbytes()) == 0;
}

bool same(const base::StateDict& a, const base::StateDict& b);

// Same type and value, floats by their bits.
inline bool same(const base::Value& a, const base::Value& b) {
  if (a.storage().index() != b.storage().index()) return false;
  if (a.is<double>()) {
    const double left = a.to_double();
    const double right = b.to_double();
    return std::memcmp(&left, &right, sizeof left) == 0;
  }
  if (a.is<int64_t>() || a.is<bool>()) return a.to_int() == b.to_int();
  if (a.is<std::string>()) return a.to_string() == b.to_string();
  if (a.is<at::Tensor>()) return same(a.to_tensor(), b.to_tensor());
  if (a.is<base::StateDict>()) return same(a.to_dict(), b.to_dict());
  if (a.is_none()) return true;
  if (a.is<c10::complex<double>>()) {
    return std::memcmp(&std::get<c10::complex<double>>(a.storage()),
                       &std::get<c10::complex<double>>(b.storage()),
                       sizeof(c10::complex<double>)) == 0;
  }
  const auto is_equal_as = [&]<typename T>(std::type_identity<T>) {
    return a.is<T>() && std::get<T>(a.storage()) == std::get<T>(b.storage());
  };
  if (a.is<base::BigInt>()) return is_equal_as(std::type_identity<base::BigInt>());
  if (a.is<base::Bytes>()) return is_equal_as(std::type_identity<base::Bytes>());
  if (a.is<at::ScalarType>()) return is_equal_as(std::type_identity<at::ScalarType>());
  if (a.is<at::Device>()) return is_equal_as(std::type_identity<at::Device>());
  if (a.to_items().size() != b.to_items().size()) return false;
  for (size_t i = 0; i < a.to_items().size(); ++i) {
    if (!same(a.to_items()[i], b.to_items()[i])) return false;
  }
  return true;
}

// Same keys in the same order, same values.
inline bool same(const base::StateDict& a, const base::StateDict& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a.entries()[i].key != b.entries()[i].key) return false;
    if (!same(a.entries()[i].value, b.entries()[i].value)) return false;
  }
  return true;
}

}  // namespace torchamp
