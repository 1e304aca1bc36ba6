#pragma once
// The pickle machine: bytes of data.pkl to a graph of nodes. It builds nothing and calls nothing;
// rebuild.h gives the nodes their meaning.

#include <cstdint>
#include <deque>
#include <string_view>
#include <vector>

namespace torchamp::checkpoint {

/// What one pickle opcode or reduction stands for.
struct Node {
  enum class Kind : uint8_t {
    kNone,
    kBool,     // integer
    kInt,      // integer
    kBigInt,   // text: little-endian two's complement, more than 8 bytes
    kFloat,    // real
    kString,   // text
    kBytes,    // text
    kList,     // items
    kTuple,    // items
    kDict,     // items: key, value, key, value, ...
    kSet,      // nothing kept
    kGlobal,   // text: "module name"
    kStorage,  // items: the persistent id, one tuple
    kCall,     // items: callee, arguments
  };
  Kind kind = Kind::kNone;
  union {
    int64_t integer = 0;
    double real;
  };
  std::string_view text;  // into the pickle
  std::vector<const Node*> items;
};

/// Reads one pickle of protocol 2 with the opcodes that weights_only=True allows.
class Unpickler {
 public:
  /// `pickle` must outlive the nodes.
  explicit Unpickler(std::string_view pickle) : pickle_(pickle) {}
  Unpickler(const Unpickler&) = delete;
  Unpickler& operator=(const Unpickler&) = delete;

  /// The value that the pickle holds; nodes live as long as this object and may form cycles.
  /// FormatError names the byte of a fault. Memory and time are linear in the pickle's size.
  const Node& load();

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
  void set_items(bool is_batch);
  void reduce();
  void memo_get(uint64_t index);
  void memo_put(uint64_t index);
  [[noreturn]] void fail(const std::string& found) const;

  std::string_view pickle_;
  size_t at_ = 0;
  size_t opcode_at_ = 0;
  std::deque<Node> nodes_;  // a deque: pointers stay valid, and nothing is freed recursively
  std::vector<Node*> stack_;
  std::vector<size_t> marks_;
  std::vector<Node*> memo_;  // by index; PyTorch numbers them from 0 without gaps
};

}  // namespace torchamp::checkpoint
