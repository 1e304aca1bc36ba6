#include "torchamp/base/state_dict.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include <ATen/ops/item.h>

#include "torchamp/base/one_line.h"
#include "torchamp/base/words.h"

namespace torchamp::base {
namespace {

[[noreturn]] void wrong_type(const std::string& who, const char* came, const char* accepted) {
  throw CheckpointError("[state_dict] " + who + " is " + with_article(came) + "; " + accepted +
                        " is accepted. Was the file written by another program or version?");
}

}  // namespace

// Ordered, not hashed: no choice of keys makes it slow.
struct StateDict::Index {
  std::map<Key, size_t> places;
};

namespace {
constexpr size_t kScanned = 16;  // up to here comparing every key is quicker than walking a tree
}  // namespace

StateDict::StateDict() = default;
StateDict::StateDict(const StateDict& other)
    : entries_(other.entries_),
      index_(other.index_ ? std::make_unique<Index>(*other.index_) : nullptr) {}
StateDict::StateDict(StateDict&&) noexcept = default;
StateDict& StateDict::operator=(const StateDict& other) {
  if (this != &other) *this = StateDict(other);
  return *this;
}
StateDict& StateDict::operator=(StateDict&&) noexcept = default;
StateDict::~StateDict() = default;

void StateDict::rebuild_index() {
  index_.reset();
  if (entries_.size() <= kScanned) return;
  index_ = std::make_unique<Index>();
  for (size_t i = 0; i < entries_.size(); ++i) index_->places.emplace(entries_[i].key, i);
}

void StateDict::set(Key key, Value value) {
  if (Value* present = find(key)) {
    *present = std::move(value);
    return;
  }
  entries_.push_back({std::move(key), std::move(value)});
  if (index_) {
    index_->places.emplace(entries_.back().key, entries_.size() - 1);
  } else {
    rebuild_index();
  }
}

bool StateDict::erase(const Key& key) {
  const auto it = std::find_if(entries_.begin(), entries_.end(),
                               [&](const Entry& entry) { return entry.key == key; });
  if (it == entries_.end()) return false;
  entries_.erase(it);
  rebuild_index();
  return true;
}

const Value* StateDict::find(const Key& key) const {
  if (index_) {
    const auto it = index_->places.find(key);
    return it == index_->places.end() ? nullptr : &entries_[it->second].value;
  }
  for (const Entry& entry : entries_) {
    if (entry.key == key) return &entry.value;
  }
  return nullptr;
}

Value* StateDict::find(const Key& key) {
  return const_cast<Value*>(static_cast<const StateDict*>(this)->find(key));
}

const Value& StateDict::at(const Key& key) const {
  if (const Value* value = find(key)) return *value;
  constexpr size_t kShown = 8;  // enough to recognise the file by, short enough for one line
  std::string present;
  for (size_t i = 0; i < std::min(entries_.size(), kShown); ++i) {
    present += (i ? ", " : "") + to_string(entries_[i].key);
  }
  if (entries_.size() > kShown) present += ", ...";
  throw CheckpointError("[state_dict] " + to_string(key) +
                        " is missing; there is: " + (present.empty() ? "nothing" : present) +
                        ". Was it saved by another program or version?");
}

std::vector<StateDict::Entry> StateDict::entries() && {
  index_.reset();
  return std::exchange(entries_, {});
}

size_t StateDict::size() const { return entries_.size(); }

bool Value::to_bool(const std::string& who) const {
  if (is<bool>()) return std::get<bool>(storage_);
  if (is<int64_t>()) return std::get<int64_t>(storage_) != 0;
  wrong_type(who, type_name(), "bool");
}

int64_t Value::to_int(const std::string& who) const {
  if (is<int64_t>()) return std::get<int64_t>(storage_);
  if (is<bool>()) return std::get<bool>(storage_) ? 1 : 0;
  if (is<at::Tensor>()) {
    const at::Tensor& tensor = std::get<at::Tensor>(storage_);
    if (tensor.defined() && tensor.numel() == 1 && !tensor.is_floating_point() &&
        !tensor.is_complex()) {
      return tensor.item().toLong();
    }
  }
  wrong_type(who, is<BigInt>() ? "int of more than 64 bits" : type_name(), "int");
}

double Value::to_double(const std::string& who) const {
  if (is<double>()) return std::get<double>(storage_);
  if (is<int64_t>()) return static_cast<double>(std::get<int64_t>(storage_));
  if (is<bool>()) return std::get<bool>(storage_) ? 1.0 : 0.0;
  if (is<at::Tensor>()) {
    const at::Tensor& tensor = std::get<at::Tensor>(storage_);
    if (tensor.defined() && tensor.numel() == 1 && !tensor.is_complex())
      return tensor.item().toDouble();
  }
  wrong_type(who, is<BigInt>() ? "int of more than 64 bits" : type_name(), "float");
}

const std::string& Value::to_string(const std::string& who) const {
  if (is<std::string>()) return std::get<std::string>(storage_);
  wrong_type(who, type_name(), "str");
}

const at::Tensor& Value::to_tensor(const std::string& who) const {
  if (is<at::Tensor>()) return std::get<at::Tensor>(storage_);
  wrong_type(who, type_name(), "Tensor");
}

const StateDict& Value::to_dict(const std::string& who) const {
  if (is<StateDict>()) return std::get<StateDict>(storage_);
  wrong_type(who, type_name(), "dict");
}

const std::vector<Value>& Value::to_items(const std::string& who) const {
  if (is<List>()) return std::get<List>(storage_).items;
  if (is<Tuple>()) return std::get<Tuple>(storage_).items;
  if (is<Set>()) return std::get<Set>(storage_).items;
  wrong_type(who, type_name(), "list, tuple or set");
}

const char* Value::type_name() const {
  constexpr const char* kNames[] = {"NoneType", "bool",  "int",   "float", "str",
                                    "Tensor",   "list",  "tuple", "dict",  "int",
                                    "complex",  "bytes", "set",   "dtype", "device"};
  static_assert(std::size(kNames) == std::variant_size_v<Storage>);
  return kNames[storage_.index()];
}

std::string BigInt::to_string() const {
  constexpr size_t kSpelled = 1024;
  if (bytes.size() > kSpelled) return "an int of " + std::to_string(8 * bytes.size()) + " bits";
  const bool is_negative = (static_cast<unsigned char>(bytes.back()) & 0x80U) != 0;
  std::vector<unsigned> digits{0};  // little-endian, base 10
  for (size_t i = bytes.size(); i-- > 0;) {
    unsigned byte = static_cast<unsigned char>(bytes[i]);
    if (is_negative) byte = ~byte & 0xFFU;
    unsigned carry = byte;
    for (unsigned& digit : digits) {
      carry += digit * 256;
      digit = carry % 10;
      carry /= 10;
    }
    for (; carry > 0; carry /= 10) digits.push_back(carry % 10);
  }
  if (is_negative) {  // -x = ~x + 1
    size_t i = 0;
    while (i < digits.size() && digits[i] == 9) digits[i++] = 0;
    if (i == digits.size()) digits.push_back(0);
    ++digits[i];
  }
  std::string text = is_negative ? "-" : "";
  for (size_t i = digits.size(); i-- > 0;) text.push_back(static_cast<char>('0' + digits[i]));
  return text;
}

std::string printable(std::string_view text) {
  constexpr size_t kShown = 120;  // more would hide the rest of the message
  return one_line(text, kShown);
}

std::string to_string(const StateDict::Key& key) {
  if (const auto* name = std::get_if<std::string>(&key)) return "'" + printable(*name) + "'";
  return std::to_string(std::get<int64_t>(key));
}

}  // namespace torchamp::base
