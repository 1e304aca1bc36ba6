#include "fuzz/harness.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <string>
#include <vector>

#include <sys/mman.h>
#include <unistd.h>

#include <ATen/core/Tensor.h>

// Of sanitizer/allocator_interface.h and lsan_interface.h, which not every package of clang has.
extern "C" {
// NOLINTBEGIN(bugprone-reserved-identifier)
int __sanitizer_install_malloc_and_free_hooks(void (*malloc_hook)(const volatile void*, size_t),
                                              void (*free_hook)(const volatile void*));
size_t __sanitizer_get_allocated_size(const volatile void*);
// NOLINTEND(bugprone-reserved-identifier)
}

namespace torchamp::fuzz {
namespace {

std::atomic<int64_t> live_bytes{0};
std::atomic<int64_t> peak_bytes{0};

void note_malloc(const volatile void* /*block*/, size_t size) {
  const int64_t now = live_bytes += static_cast<int64_t>(size);
  int64_t peak = peak_bytes;
  while (now > peak && !peak_bytes.compare_exchange_weak(peak, now)) {
  }
}

void note_free(const volatile void* block) {
  if (block != nullptr) {
    live_bytes -= static_cast<int64_t>(__sanitizer_get_allocated_size(block));
  }
}

const bool hooks_are_in = __sanitizer_install_malloc_and_free_hooks(note_malloc, note_free) != 0;

volatile unsigned char sink;

void use_bytes(const void* data, size_t size) {
  const auto* bytes = static_cast<const unsigned char*>(data);
  unsigned char sum = 0;
  for (size_t i = 0; i < size; ++i) sum = static_cast<unsigned char>(sum + bytes[i]);
  sink = sum;
}

// The first and last byte offset in the storage that the tensor's elements touch.
void use_tensor(const at::Tensor& tensor, size_t file_bytes) {
  const size_t storage_bytes = tensor.storage().nbytes();
  if (storage_bytes > file_bytes) fault("use", "a storage is larger than the file");
  use_bytes(tensor.storage().data(), storage_bytes);
  if (tensor.numel() == 0) return;
  __int128 last = tensor.storage_offset();
  for (int64_t i = 0; i < tensor.dim(); ++i) {
    if (tensor.stride(i) < 0) fault("use", "a stride is negative");
    last += static_cast<__int128>(tensor.size(i) - 1) * tensor.stride(i);
  }
  if (tensor.storage_offset() < 0 ||
      (last + 1) * static_cast<__int128>(tensor.element_size()) > storage_bytes) {
    fault("use", "a tensor's elements lie outside its storage");
  }
}

bool same_tensor(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() &&
         a.strides() == b.strides() && a.storage_offset() == b.storage_offset() &&
         a.is_conj() == b.is_conj() && a.is_neg() == b.is_neg() &&
         a.storage().nbytes() == b.storage().nbytes() &&
         (a.storage().nbytes() == 0 ||
          std::memcmp(a.storage().data(), b.storage().data(), a.storage().nbytes()) == 0);
}

bool same_bits(const void* a, const void* b, size_t size) { return std::memcmp(a, b, size) == 0; }

}  // namespace

std::filesystem::path file_of(std::string_view bytes) {
  static const int descriptor = ::memfd_create("fuzz", MFD_CLOEXEC);
  if (descriptor < 0 || ::ftruncate(descriptor, 0) != 0 ||
      ::pwrite(descriptor, bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    fault("file_of", "a file in memory cannot be written");
  }
  static const std::filesystem::path path = "/proc/self/fd/" + std::to_string(descriptor);
  return path;
}

void fault(const char* what, std::string_view why) {
  std::fprintf(stderr, "fault: %s: %.*s\n", what, static_cast<int>(why.size()), why.data());
  std::abort();
}

bool reads(const char* what, size_t most_bytes, const std::function<void()>& read) {
  if (!hooks_are_in) fault(what, "memory is not counted");
  const int64_t before = live_bytes;
  peak_bytes = before;
  bool has_read = false;
  try {
    read();
    has_read = true;
  } catch (const base::CheckpointError& error) {
    const std::string_view text = error.what();
    if (text.find('\n') != std::string_view::npos ||
        text.find("/proc/self/fd/") == std::string_view::npos) {
      fault(what, text);
    }
  } catch (const std::exception& error) {
    fault(what, error.what());
  }
  const int64_t grown = peak_bytes - before;
  if (grown > static_cast<int64_t>(most_bytes)) {
    fault(what, std::to_string(grown) + " bytes of memory; at most " + std::to_string(most_bytes) +
                    " are accepted");
  }
  return has_read;
}

void use(const base::Value& value, size_t file_bytes) {
  if (value.is<at::Tensor>()) {
    use_tensor(value.to_tensor(), file_bytes);
  } else if (value.is<base::StateDict>()) {
    for (const auto& [key, item] : value.to_dict().entries()) use(item, file_bytes);
  } else if (value.is<base::List>() || value.is<base::Tuple>() || value.is<base::Set>()) {
    for (const base::Value& item : value.to_items()) use(item, file_bytes);
  } else if (value.is<base::BigInt>()) {
    const base::BigInt& number = std::get<base::BigInt>(value.storage());
    if (number.bytes.size() <= 8) fault("use", "a BigInt of 64 bits");
    sink = static_cast<unsigned char>(number.to_string().size());
  }
}

bool same(const base::Value& a, const base::Value& b) {
  using base::Value;
  if (a.storage().index() != b.storage().index()) return false;
  if (a.is<at::Tensor>()) return same_tensor(a.to_tensor(), b.to_tensor());
  if (a.is<base::StateDict>()) {
    const auto& left = a.to_dict().entries();
    const auto& right = b.to_dict().entries();
    return std::equal(
        left.begin(), left.end(), right.begin(), right.end(),
        [](const auto& x, const auto& y) { return x.key == y.key && same(x.value, y.value); });
  }
  if (a.is<base::List>() || a.is<base::Tuple>() || a.is<base::Set>()) {
    return std::equal(a.to_items().begin(), a.to_items().end(), b.to_items().begin(),
                      b.to_items().end(),
                      [](const Value& x, const Value& y) { return same(x, y); });
  }
  return std::visit(
      [&](const auto& left) {
        using T = std::decay_t<decltype(left)>;
        const T& right = std::get<T>(b.storage());
        if constexpr (std::is_same_v<T, double> || std::is_same_v<T, c10::complex<double>>) {
          return same_bits(&left, &right, sizeof left);
        } else if constexpr (std::is_same_v<T, at::Tensor> || std::is_same_v<T, base::StateDict> ||
                             std::is_same_v<T, base::List> || std::is_same_v<T, base::Tuple> ||
                             std::is_same_v<T, base::Set>) {
          return true;  // compared above
        } else {
          return left == right;
        }
      },
      a.storage());
}

}  // namespace torchamp::fuzz
