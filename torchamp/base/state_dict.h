#pragma once
// StateDict: the ordered tree of names, numbers and tensors that checkpoints hold. Knows nothing of
// files.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <c10/util/complex.h>

#include "torchamp/base/error.h"
#include "torchamp/base/export.h"

namespace torchamp::base {

class Value;

/// A Python list.
struct List {
  std::vector<Value> items;
};

/// A Python tuple.
struct Tuple {
  std::vector<Value> items;
};

/// A Python set or frozenset; the order is that of the file.
struct Set {
  std::vector<Value> items;
};

/// Python's bytes or bytearray.
struct Bytes {
  std::string data;

  bool operator==(const Bytes&) const = default;
};

/// A Python int beyond 64 bits.
struct TORCHAMP_API BigInt {
  /// Little-endian two's complement; more than 8 bytes, the last not superfluous.
  std::string bytes;

  bool operator==(const BigInt&) const = default;
  /// Decimal, as Python prints it; beyond 1024 bytes "an int of N bits", since digits would take
  /// time that grows with the square of their number.
  std::string to_string() const;
};

/// A Python dict whose keys are strings or integers, in insertion order.
///
/// find() and set() take logarithmic time, so a file with a million keys, hostile or not, is read
/// in seconds. Tensors are shared by copies of a dict, as in Python. Thread safety: as a standard
/// container (concurrent reads only).
class TORCHAMP_API StateDict {
 public:
  using Key = std::variant<std::string, int64_t>;
  struct Entry;

  StateDict();
  StateDict(const StateDict&);
  StateDict(StateDict&&) noexcept;
  StateDict& operator=(const StateDict&);
  StateDict& operator=(StateDict&&) noexcept;
  ~StateDict();

  /// Adds `key` at the end, or replaces its value where it stands.
  void set(Key key, Value value);
  /// Takes `key` out; returns whether it was there. Linear in the size of the dict.
  bool erase(const Key& key);

  /// The value of `key`, or nullptr.
  const Value* find(const Key& key) const;
  Value* find(const Key& key);
  /// The value of `key`; CheckpointError naming the key and the keys there are, when absent.
  const Value& at(const Key& key) const;
  bool contains(const Key& key) const { return find(key) != nullptr; }

  size_t size() const;
  bool empty() const { return size() == 0; }
  const std::vector<Entry>& entries() const& { return entries_; }
  /// Of a temporary the entries themselves, so that a loop over load(path).entries() is right.
  std::vector<Entry> entries() &&;

 private:
  struct Index;
  void rebuild_index();

  std::vector<Entry> entries_;
  std::unique_ptr<Index> index_;  // place of each key; absent while a scan is quicker
};

/// One value of a StateDict: None, bool, int of any size, float, complex, str, bytes, tensor, list,
/// tuple, set, dict, dtype or device.
class TORCHAMP_API Value {
 public:
  using Storage =
      std::variant<std::monostate, bool, int64_t, double, std::string, at::Tensor, List, Tuple,
                   StateDict, BigInt, c10::complex<double>, Bytes, Set, at::ScalarType, at::Device>;

  Value() = default;  // None
  Value(bool value) : storage_(value) {}
  Value(int value) : storage_(static_cast<int64_t>(value)) {}
  Value(int64_t value) : storage_(value) {}
  Value(double value) : storage_(value) {}
  Value(const char* value) : storage_(std::string(value)) {}
  Value(std::string value) : storage_(std::move(value)) {}
  Value(at::Tensor value) : storage_(std::move(value)) {}
  Value(List value) : storage_(std::move(value)) {}
  Value(Tuple value) : storage_(std::move(value)) {}
  Value(StateDict value) : storage_(std::move(value)) {}
  Value(BigInt value) : storage_(std::move(value)) {}
  Value(c10::complex<double> value) : storage_(value) {}
  Value(Bytes value) : storage_(std::move(value)) {}
  Value(Set value) : storage_(std::move(value)) {}
  Value(at::ScalarType value) : storage_(value) {}
  Value(at::Device value) : storage_(value) {}

  bool is_none() const { return std::holds_alternative<std::monostate>(storage_); }
  template <typename T>
  bool is() const {
    return std::holds_alternative<T>(storage_);
  }

  /// Reads with Python's numeric rules: an int serves where a float is wanted, a bool where an int
  /// is, a one-element tensor where a number is. CheckpointError saying what came and what was
  /// wanted, otherwise; `who` names the entry.
  bool to_bool(const std::string& who = "value") const;
  int64_t to_int(const std::string& who = "value") const;
  double to_double(const std::string& who = "value") const;
  const std::string& to_string(const std::string& who = "value") const;
  const at::Tensor& to_tensor(const std::string& who = "value") const;
  const StateDict& to_dict(const std::string& who = "value") const;
  /// The items of a list, a tuple or a set.
  const std::vector<Value>& to_items(const std::string& who = "value") const;

  /// Python's name of the type held: "NoneType", "bool", "int", "float", "complex", "str", "bytes",
  /// "Tensor", "list", "tuple", "set", "dict", "dtype", "device".
  const char* type_name() const;
  const Storage& storage() const { return storage_; }

 private:
  Storage storage_;
};

struct StateDict::Entry {
  Key key;
  Value value;
};

/// `text` on one line and not too long, for messages: control characters as \n or \x1b.
TORCHAMP_API std::string printable(std::string_view text);

/// `key` as Python would print it: 'name' or 3.
TORCHAMP_API std::string to_string(const StateDict::Key& key);

}  // namespace torchamp::base
