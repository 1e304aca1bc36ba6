#include "torchamp/checkpoint/pickler.h"

#include <bit>
#include <cstdint>
#include <map>
#include <string_view>
#include <unordered_map>
#include <utility>

#include <ATen/core/Tensor.h>

#include "torchamp/base/utf8.h"
#include "torchamp/checkpoint/dtype.h"
#include "torchamp/checkpoint/format_error.h"

namespace torchamp::checkpoint {
namespace {

using base::CheckpointError;
using base::StateDict;
using base::Value;

class Pickler {
 public:
  Pickled run(const StateDict& root) {
    put("\x80\x02");  // PROTO 2
    dict(root);
    put('.');
    return std::move(result_);
  }

 private:
  [[noreturn]] void fail(const std::string& text) const {
    std::string where;
    for (const std::string& key : path_) where += "[" + key + "]";
    throw CheckpointError("[checkpoint::save] entry " + where + " " + text);
  }

  void put(char byte) { result_.bytes.push_back(byte); }
  void put(std::string_view bytes) { result_.bytes.append(bytes); }
  void put_uint(uint64_t value, int count) {
    for (int i = 0; i < count; ++i) put(static_cast<char>((value >> (8 * i)) & 0xFFU));
  }

  // Every str, tuple, list, dict, name and call gets the next number, as Python gives it.
  uint32_t memoize() {
    if (next_memo_ < 256) {
      put('q');
      put_uint(next_memo_, 1);
    } else {
      put('r');
      put_uint(next_memo_, 4);
    }
    return next_memo_++;
  }
  void recall(uint32_t number) {
    if (number < 256) {
      put('h');
      put_uint(number, 1);
    } else {
      put('j');
      put_uint(number, 4);
    }
  }
  // Recalls what `numbers` knows by `key`, else writes it and remembers its number.
  template <typename Map, typename Write>
  void once(Map& numbers, const typename Map::key_type& key, Write write) {
    if (const auto it = numbers.find(key); it != numbers.end()) {
      recall(it->second);
      return;
    }
    write();
    numbers.emplace(key, memoize());
  }

  void string(const std::string& text) {
    once(strings_, text, [&] {
      // Surrogates are allowed, as Python writes and reads them.
      if (!base::detail::is_utf8(text, base::detail::Surrogates::kAllowed)) {
        fail(
            "holds text that is not UTF-8; Python would refuse the file. Is it binary data? Use "
            "a uint8 tensor.");
      }
      if (text.size() > UINT32_MAX) fail("holds text of more than 4 GiB; use a uint8 tensor.");
      put('X');
      put_uint(text.size(), 4);
      put(text);
    });
  }

  void global(const std::string& name) {  // "module\nname\n"
    once(globals_, name, [&] {
      put('c');
      put(name);
    });
  }

  void integer(int64_t value) {
    if (value >= 0 && value < 256) {
      put('K');
      put_uint(static_cast<uint64_t>(value), 1);
    } else if (value >= 0 && value < 65536) {
      put('M');
      put_uint(static_cast<uint64_t>(value), 2);
    } else if (value >= INT32_MIN && value <= INT32_MAX) {
      put('J');
      put_uint(static_cast<uint64_t>(value), 4);
    } else {
      int count = 8;  // the fewest bytes that keep the sign
      while (count > 1 && (value >> (8 * (count - 1) - 1)) == (value < 0 ? -1 : 0)) --count;
      put('\x8a');
      put_uint(static_cast<uint64_t>(count), 1);
      put_uint(static_cast<uint64_t>(value), count);
    }
  }

  void real(double value) {
    const auto bits = std::bit_cast<uint64_t>(value);
    put('G');
    for (int i = 7; i >= 0; --i) put(static_cast<char>((bits >> (8 * i)) & 0xFFU));
  }

  template <typename Write>
  void inside(std::string key, Write write) {
    if (path_.size() >= static_cast<size_t>(kMaxDepth)) {
      path_.resize(3);
      fail("... is nested more than " + std::to_string(kMaxDepth) +
           " deep; Python's pickle stops there too. Flatten it.");
    }
    path_.push_back(std::move(key));
    write();
    path_.pop_back();
  }

  // Python writes members in batches of 1000, and an only one without a mark.
  template <typename Write>
  void batches(size_t count, char one, char many, Write write) {
    constexpr size_t kBatch = 1000;
    for (size_t first = 0; first < count; first += kBatch) {
      const size_t last = std::min(count, first + kBatch);
      const bool is_single = count == 1;
      if (!is_single) put('(');
      for (size_t i = first; i < last; ++i) write(i);
      put(is_single ? one : many);
    }
  }

  void dict(const StateDict& members) {
    put('}');
    memoize();
    const auto& entries = members.entries();
    batches(entries.size(), 's', 'u', [&](size_t i) {
      inside(base::to_string(entries[i].key), [&] {
        if (const auto* name = std::get_if<std::string>(&entries[i].key)) {
          string(*name);
        } else {
          integer(std::get<int64_t>(entries[i].key));
        }
        value(entries[i].value);
      });
    });
  }

  void list(const base::List& members) {
    put(']');
    memoize();
    batches(members.items.size(), 'a', 'e',
            [&](size_t i) { inside(std::to_string(i), [&] { value(members.items[i]); }); });
  }

  // A call of "module\nname\n" with `count` arguments that `write` writes.
  template <typename Write>
  void call(const std::string& name, size_t count, Write write) {
    global(name);
    tuple(count, write);
    put('R');
    memoize();
  }

  // A tuple of `count` parts that `write` writes.
  template <typename Write>
  void tuple(size_t count, Write write) {
    if (count == 0) {
      put(')');
      return;
    }
    if (count > 3) put('(');
    for (size_t i = 0; i < count; ++i) write(i);
    put(count > 3 ? 't' : static_cast<char>(0x84 + count));
    memoize();
  }

  void value(const Value& value) {
    std::visit([&](const auto& held) { write(held); }, value.storage());
  }
  void write(std::monostate) { put('N'); }
  void write(bool value) { put(value ? '\x88' : '\x89'); }
  void write(int64_t value) { integer(value); }
  void write(double value) { real(value); }
  void write(const std::string& value) { string(value); }
  void write(const at::Tensor& value) { tensor(value); }
  void write(const base::List& value) { list(value); }
  void write(const StateDict& value) { dict(value); }
  void write(at::ScalarType value) {
    const auto dtype = find_dtype(value);
    if (!dtype) {
      fail("is the dtype " + std::string(c10::toString(value)) +
           "; those that torch.save writes are accepted.");
    }
    global("torch\n" + std::string(dtype->name) + "\n");
  }
  void write(at::Device value) {
    call("torch\ndevice\n", value.has_index() ? 2 : 1, [&](size_t i) {
      if (i == 0) return string(c10::DeviceTypeName(value.type(), /*lower_case=*/true));
      integer(value.index());
    });
  }
  void write(const c10::complex<double>& value) {
    call("__builtin__\ncomplex\n", 2,
         [&](size_t i) { real(i == 0 ? value.real() : value.imag()); });
  }
  void write(const base::Set& value) {
    call("__builtin__\nset\n", 1, [&](size_t) { list({value.items}); });
  }
  // Protocol 2 has no bytes: Python writes a str of the same code points, and how to encode it.
  void write(const base::Bytes& value) {
    call("_codecs\nencode\n", 2, [&](size_t i) {
      if (i == 1) return string("latin1");
      std::string text;
      for (const char byte : value.data) {
        base::detail::append_utf8(text, static_cast<unsigned char>(byte));
      }
      string(text);
    });
  }
  void write(const base::BigInt& value) {
    constexpr size_t kMost = 255;  // what LONG1 holds; weights_only=True reads no larger int
    if (value.bytes.size() > kMost) {
      fail("is " + value.to_string() + "; Python reads ints of up to 2040 bits from a checkpoint.");
    }
    put('\x8a');
    put_uint(value.bytes.size(), 1);
    put(value.bytes);
  }
  void write(const base::Tuple& value) {
    tuple(value.items.size(),
          [&](size_t i) { inside(std::to_string(i), [&] { this->value(value.items[i]); }); });
  }

  void tensor(const at::Tensor& original) {
    if (!original.defined()) {
      put('N');
      return;
    }
    once(tensors_, original.unsafeGetTensorImpl(), [&] {
      if (original.layout() != at::kStrided || original.is_quantized() || original.is_meta() ||
          !original.has_storage()) {
        fail("is a tensor without a plain storage (" + original.toString() +
             "); dense tensors are accepted. Use to_dense() or dequantize() first.");
      }
      const auto dtype = find_dtype(original.scalar_type());
      if (!dtype) {
        fail("is a tensor of " + std::string(c10::toString(original.scalar_type())) +
             "; the dtypes that torch.save writes are accepted. Convert it first.");
      }
      const at::Tensor plain = original.detach().resolve_conj().resolve_neg();
      const bool is_new = dtype->storage_class.empty();
      global(is_new ? "torch._utils\n_rebuild_tensor_v3\n" : "torch._utils\n_rebuild_tensor_v2\n");
      tuple(is_new ? 7 : 6, [&](size_t i) {
        switch (i) {
          case 0:
            return storage(plain.storage(), *dtype);
          case 1:
            return integer(plain.storage_offset());
          case 2:
            return integers(plain.sizes());
          case 3:
            return integers(plain.strides());
          case 4:
            return write(false);  // requires_grad
          case 5:                 // backward hooks
            global("collections\nOrderedDict\n");
            put(")R");
            memoize();
            return;
          default:
            return global("torch\n" + std::string(dtype->name) + "\n");
        }
      });
      put('R');
    });
  }

  void integers(at::IntArrayRef values) {
    tuple(values.size(), [&](size_t i) { integer(values[i]); });
  }

  // One record for each storage and dtype: Python gives a storage one dtype.
  void storage(const at::Storage& storage, const SavedDtype& dtype) {
    const bool is_untyped = dtype.storage_class.empty();
    const std::pair<const void*, at::ScalarType> identity(storage.unsafeGetStorageImpl(),
                                                          dtype.type);
    const auto [it, is_first] = records_.emplace(identity, result_.storages.size());
    if (is_first) result_.storages.push_back(storage);
    const size_t item_bytes = is_untyped ? 1 : c10::elementSize(dtype.type);
    const size_t record = it->second;
    tuple(5, [&](size_t i) {
      switch (i) {
        case 0:
          return string("storage");
        case 1:
          return global(is_untyped ? "torch.storage\nUntypedStorage\n"
                                   : "torch\n" + std::string(dtype.storage_class) + "\n");
        case 2:
          return string(std::to_string(record));
        case 3:
          return string("cpu");
        default:
          return integer(static_cast<int64_t>(storage.nbytes() / item_bytes));
      }
    });
    put('Q');
  }

  Pickled result_;
  std::vector<std::string> path_;
  uint32_t next_memo_ = 0;
  std::unordered_map<std::string, uint32_t> strings_;
  std::unordered_map<std::string, uint32_t> globals_;
  std::unordered_map<const void*, uint32_t> tensors_;
  std::map<std::pair<const void*, at::ScalarType>, size_t> records_;
};

}  // namespace

Pickled pickle(const StateDict& dict) { return Pickler().run(dict); }

}  // namespace torchamp::checkpoint
