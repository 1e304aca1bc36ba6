#include "torchamp/checkpoint/unpickler.h"

#include <algorithm>
#include <bit>
#include <string>
#include <utility>

#include "torchamp/checkpoint/format_error.h"

namespace torchamp::checkpoint {

void Unpickler::fail(const std::string& found) const {
  throw FormatError("byte " + std::to_string(opcode_at_) + " of data.pkl " + found +
                    "; a pickle of protocol 2 as torch.save writes it is expected. Was the file "
                    "damaged or written by another program?");
}

std::string_view Unpickler::take(size_t count, const char* what) {
  if (pickle_.size() - at_ < count) fail(std::string("starts ") + what + " that the end cuts off");
  at_ += count;
  return pickle_.substr(at_ - count, count);
}

std::string_view Unpickler::take_line() {
  const size_t end = pickle_.find('\n', at_);
  if (end == std::string_view::npos) fail("starts a name that the end cuts off");
  const std::string_view line = pickle_.substr(at_, end - at_);
  at_ = end + 1;
  return line;
}

uint64_t Unpickler::take_uint(size_t count) {
  const std::string_view bytes = take(count, "a number");
  uint64_t value = 0;
  for (size_t i = 0; i < count; ++i) {
    value |= uint64_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
  }
  return value;
}

Node* Unpickler::push(Kind kind) {
  nodes_.emplace_back().kind = kind;
  stack_.push_back(&nodes_.back());
  return stack_.back();
}

void Unpickler::push_text(Kind kind, std::string_view text) { push(kind)->text = text; }

void Unpickler::push_int(int64_t value) { push(Kind::kInt)->integer = value; }

void Unpickler::push_long(std::string_view bytes) {
  if (bytes.size() > 8) {
    push_text(Kind::kBigInt, bytes);
    return;
  }
  uint64_t value = 0;
  for (size_t i = 0; i < bytes.size(); ++i) {
    value |= uint64_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
  }
  const size_t unused = 64 - 8 * bytes.size();  // extend the sign
  push_int(bytes.empty() ? 0 : static_cast<int64_t>(value << unused) >> unused);
}

void Unpickler::push_float() {
  const std::string_view bytes = take(8, "a float");
  uint64_t bits = 0;
  for (const char byte : bytes) bits = (bits << 8) | static_cast<unsigned char>(byte);
  push(Kind::kFloat)->real = std::bit_cast<double>(bits);
}

Node* Unpickler::top() {
  const size_t floor = marks_.empty() ? 0 : marks_.back();
  if (stack_.size() <= floor) fail("needs a value where there is none");
  return stack_.back();
}

Node* Unpickler::pop() {
  Node* node = top();
  stack_.pop_back();
  return node;
}

std::vector<const Node*> Unpickler::pop_mark() {
  if (marks_.empty()) fail("ends a group that was never begun");
  const auto first = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
  std::vector<const Node*> items(first, stack_.end());
  stack_.erase(first, stack_.end());
  marks_.pop_back();
  return items;
}

void Unpickler::make_tuple(size_t count) {
  std::vector<const Node*> items(count);
  for (size_t i = count; i-- > 0;) items[i] = pop();
  push(Kind::kTuple)->items = std::move(items);
}

// An object that fills itself, a defaultdict or a deque say. It will be refused by its name and
// entry, so what it holds is not kept.
bool Unpickler::is_of_another_class(const Node& node) {
  return node.kind == Kind::kCall && !node.items[0]->text.starts_with("torch");
}

void Unpickler::append(bool is_batch) {
  const std::vector<const Node*> items = is_batch ? pop_mark() : std::vector<const Node*>{pop()};
  Node* list = top();
  if (is_of_another_class(*list)) return;
  if (list->kind != Kind::kList) fail("appends to something that is not a list");
  list->items.insert(list->items.end(), items.begin(), items.end());
}

void Unpickler::set_items(bool is_batch) {
  std::vector<const Node*> items;
  if (is_batch) {
    items = pop_mark();
  } else {
    const Node* value = pop();
    items = {pop(), value};
  }
  Node* dict = top();
  if (is_of_another_class(*dict)) return;
  if (dict->kind != Kind::kDict) fail("sets an item of something that is not a dict");
  if (items.size() % 2 != 0) fail("sets a key without a value");
  dict->items.insert(dict->items.end(), items.begin(), items.end());
}

void Unpickler::reduce() {
  const Node* arguments = pop();
  const Node* callee = pop();
  if (arguments->kind != Kind::kTuple) fail("calls with something that is not a tuple");
  if (callee->kind != Kind::kGlobal) fail("calls something that is not a name");
  // OrderedDict is filled by opcodes that follow, so it must be a dict already.
  if (callee->text == "collections\nOrderedDict") {
    Node* dict = push(Kind::kDict);
    if (arguments->items.empty()) return;
    if (arguments->items.size() != 1 || arguments->items[0]->kind != Kind::kList) {
      fail("makes an OrderedDict of something that is not a list of pairs");
    }
    for (const Node* pair : arguments->items[0]->items) {
      const bool is_pair =
          (pair->kind == Kind::kList || pair->kind == Kind::kTuple) && pair->items.size() == 2;
      if (!is_pair) fail("makes an OrderedDict of something that is not a list of pairs");
      dict->items.insert(dict->items.end(), pair->items.begin(), pair->items.end());
    }
    return;
  }
  push(Kind::kCall)->items = {callee, arguments};
}

void Unpickler::memo_get(uint64_t index) {
  if (index >= memo_.size() || memo_[index] == nullptr) fail("recalls a value that was not kept");
  stack_.push_back(memo_[index]);
}

void Unpickler::memo_put(uint64_t index) {
  // Every index costs at least two bytes of pickle, so a greater one is a fault, not a large file.
  if (index > pickle_.size()) fail("keeps a value under a number beyond the file's size");
  if (index >= memo_.size()) memo_.resize(index + 1, nullptr);
  memo_[index] = top();
}

const Node& Unpickler::load() {
  for (;;) {
    opcode_at_ = at_;
    const char opcode = take(1, "a value")[0];
    switch (opcode) {
      case '\x80':  // PROTO
        if (const uint64_t protocol = take_uint(1); protocol != 2) {
          fail("announces pickle protocol " + std::to_string(protocol));
        }
        break;
      case '.': {  // STOP
        const Node* result = pop();
        if (!stack_.empty() || !marks_.empty()) fail("stops while values are left over");
        if (at_ != pickle_.size()) fail("stops before the end of the record");
        return *result;
      }
      case '(':  // MARK
        marks_.push_back(stack_.size());
        break;
      case 'N':  // NONE
        push(Kind::kNone);
        break;
      case '\x88':  // NEWTRUE
      case '\x89':  // NEWFALSE
        push(Kind::kBool)->integer = opcode == '\x88' ? 1 : 0;
        break;
      case 'J':  // BININT
        push_int(static_cast<int32_t>(take_uint(4)));
        break;
      case 'K':  // BININT1
        push_int(static_cast<int64_t>(take_uint(1)));
        break;
      case 'M':  // BININT2
        push_int(static_cast<int64_t>(take_uint(2)));
        break;
      case '\x8a':  // LONG1
        push_long(take(take_uint(1), "an int"));
        break;
      case 'G':  // BINFLOAT
        push_float();
        break;
      case 'X':  // BINUNICODE
        push_text(Kind::kString, take(take_uint(4), "a str"));
        break;
      case 'U':  // SHORT_BINSTRING
        push_text(Kind::kBytes, take(take_uint(1), "bytes"));
        break;
      case ']':  // EMPTY_LIST
        push(Kind::kList);
        break;
      case '}':  // EMPTY_DICT
        push(Kind::kDict);
        break;
      case ')':  // EMPTY_TUPLE
        push(Kind::kTuple);
        break;
      case '\x8f':  // EMPTY_SET
        push(Kind::kSet);
        break;
      case 't':  // TUPLE
      {
        auto items = pop_mark();
        push(Kind::kTuple)->items = std::move(items);
      } break;
      case '\x85':  // TUPLE1
      case '\x86':  // TUPLE2
      case '\x87':  // TUPLE3
        make_tuple(static_cast<unsigned char>(opcode) - 0x84U);
        break;
      case 'a':  // APPEND
      case 'e':  // APPENDS
        append(opcode == 'e');
        break;
      case 's':  // SETITEM
      case 'u':  // SETITEMS
        set_items(opcode == 'u');
        break;
      case 'c': {  // GLOBAL: two lines, kept as one text with the line end between
        const size_t start = at_;
        take_line();
        take_line();
        push_text(Kind::kGlobal, pickle_.substr(start, at_ - start - 1));
        break;
      }
      case 'R':     // REDUCE
      case '\x81':  // NEWOBJ: class and arguments, as REDUCE
        reduce();
        break;
      case 'b':  // BUILD: attributes such as OrderedDict's _metadata; not part of the value
        pop();
        top();
        break;
      case 'Q': {  // BINPERSID
        const Node* id = pop();
        push(Kind::kStorage)->items = {id};
        break;
      }
      case 'h':  // BINGET
        memo_get(take_uint(1));
        break;
      case 'j':  // LONG_BINGET
        memo_get(take_uint(4));
        break;
      case 'q':  // BINPUT
        memo_put(take_uint(1));
        break;
      case 'r':  // LONG_BINPUT
        memo_put(take_uint(4));
        break;
      default:
        fail("is opcode " + std::to_string(static_cast<unsigned char>(opcode)) +
             ", which torch.load(weights_only=True) does not know either");
    }
  }
}

}  // namespace torchamp::checkpoint
