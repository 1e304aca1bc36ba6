#pragma once
// The pickle machine: bytes of data.pkl to a graph of nodes. It builds nothing and calls nothing;
// rebuild.h gives the nodes their meaning.

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "torchamp/checkpoint/format_error.h"

namespace torchamp::checkpoint {

/// What one pickle opcode or reduction stands for.
struct Node {
  enum class Kind : uint8_t {
    kNone,
    kBool,     // integer
    kInt,      // integer
    kBigInt,   // text: little-endian two's complement, the fewest bytes, more than 8
    kFloat,    // real
    kString,   // text; integer: 1 for a str of Python 2, whose bytes may be anything
    kBytes,    // text
    kList,     // items
    kTuple,    // items
    kDict,     // items: key, value, key, value, ...; state: what it begins with, when not nullptr
    kSet,      // items
    kGlobal,   // text: "module\nname"
    kStorage,  // items: the persistent id, one tuple
    kCall,     // items: callee, arguments; state: what BUILD gave the result, or nullptr
  };
  Kind kind = Kind::kNone;
  union {
    int64_t integer = 0;
    double real;
  };
  std::string_view text;  // into the pickle or the machine
  std::vector<const Node*> items;
  const Node* state = nullptr;
};

/// A pickle that goes on behind the bytes there are.
class CutOffError : public FormatError {
 public:
  using FormatError::FormatError;
};

/// Reads pickles of protocols 2 to 5 with the opcodes that make data.
class Unpickler {
 public:
  /// `bytes` must outlive the nodes; `name` says what they are in messages.
  explicit Unpickler(std::string_view bytes, std::string name = "data.pkl")
      : pickle_(bytes), name_(std::move(name)) {}
  Unpickler(const Unpickler&) = delete;
  Unpickler& operator=(const Unpickler&) = delete;

  /// The value that the bytes hold, all of them; nodes live as long as this object and may form
  /// cycles. FormatError names the byte of a fault. Memory and time are linear in the size.
  const Node& load();
  /// The value of the next of several pickles in a row.
  const Node& load_next();
  /// Bytes read so far.
  size_t position() const { return at_; }
  /// The storages in the order in which the pickles name them.
  const std::vector<const Node*>& storages() const { return storages_; }

 private:
  using Kind = Node::Kind;

  std::string_view take(size_t count, const char* what);
  std::string_view take_line();
  uint64_t take_uint(size_t count);
  Node* push(Kind kind);
  void push_text(Kind kind, std::string_view text);
  void push_int(int64_t value);
  void push_long(std::string_view bytes);
  void push_float();
  Node* pop();
  Node* top();
  std::vector<const Node*> pop_mark();
  void make_tuple(size_t count);
  static bool is_of_another_class(const Node& node);
  void append(bool is_batch);
  void add_items();
  void make_global(std::string_view module, std::string_view name);
  void stack_global();
  void build();
  void pop_value();
  void skip_frame();
  void set_items(bool is_batch);
  void reduce();
  void memo_get(uint64_t index);
  void memo_put(uint64_t index);
  bool step_value(char opcode);
  bool step_stack(char opcode);
  [[noreturn]] void fail(const std::string& found) const;
  [[noreturn]] void fail_opcode(char opcode) const;
  [[noreturn]] void fail_cut_off(const char* what) const;
  std::string told(const std::string& found) const;

  std::string_view pickle_;
  std::string name_;
  size_t at_ = 0;
  size_t opcode_at_ = 0;
  std::deque<Node> nodes_;  // a deque: pointers stay valid, and nothing is freed recursively
  std::vector<Node*> stack_;
  std::vector<size_t> marks_;
  std::vector<Node*> memo_;                  // by index; PyTorch numbers them from 0 without gaps
  uint64_t num_kept_ = 0;                    // entries of memo_ that are not nullptr
  std::unordered_set<std::string> globals_;  // the names that are not written in one piece
  std::vector<const Node*> storages_;
};

}  // namespace torchamp::checkpoint
