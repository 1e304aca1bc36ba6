#include "torchamp/checkpoint/unpickler.h"

#include <algorithm>
#include <bit>
#include <string>
#include <utility>

#include "torchamp/checkpoint/format_error.h"

namespace torchamp::checkpoint {

std::string Unpickler::told(const std::string& found) const {
  return "byte " + std::to_string(opcode_at_) + " of " + name_ + " " + found +
         "; a pickle as torch.save writes it is expected. Was the file damaged or written by "
         "another program?";
}

void Unpickler::fail(const std::string& found) const { throw FormatError(told(found)); }

void Unpickler::fail_cut_off(const char* what) const {
  throw CutOffError(told(std::string("starts ") + what + " that the end cuts off"));
}

std::string_view Unpickler::take(size_t count, const char* what) {
  if (pickle_.size() - at_ < count) fail_cut_off(what);
  at_ += count;
  return pickle_.substr(at_ - count, count);
}

std::string_view Unpickler::take_line() {
  constexpr size_t kMost = 256;  // no name of a class is longer
  const std::string_view rest = pickle_.substr(at_, kMost);
  const size_t end = rest.find('\n');
  if (end == std::string_view::npos) {
    if (rest.size() == kMost) fail("starts a name of more than 255 bytes");
    fail_cut_off("a name");
  }
  at_ += end + 1;
  return rest.substr(0, end);
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
  // The fewest bytes: the last is superfluous when it repeats the sign of the one before.
  while (bytes.size() > 1) {
    const auto last = static_cast<unsigned char>(bytes.back());
    const auto before = static_cast<unsigned char>(bytes[bytes.size() - 2]);
    if (last != (before >= 0x80 ? 0xFF : 0x00)) break;
    bytes.remove_suffix(1);
  }
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

// An object that fills itself, a deque say. It will be refused by its name and
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

void Unpickler::add_items() {
  const std::vector<const Node*> items = pop_mark();
  Node* set = top();
  if (is_of_another_class(*set)) return;
  if (set->kind != Kind::kSet) fail("adds to something that is not a set");
  set->items.insert(set->items.end(), items.begin(), items.end());
}

// Names are kept as "module\nname", the built-in module by its name in Python 3.
void Unpickler::make_global(std::string_view module, std::string_view name) {
  if (module == "__builtin__") module = "builtins";
  const std::string text = std::string(module) + '\n' + std::string(name);
  push_text(Kind::kGlobal, *globals_.insert(text).first);
}

void Unpickler::stack_global() {
  const Node* name = pop();
  const Node* module = pop();
  constexpr size_t kMost = 255;
  for (const Node* part : {module, name}) {
    if (part->kind != Kind::kString) fail("names a class by something that is not a str");
    if (part->text.size() > kMost) fail("names a class by more than 255 bytes");
    if (part->text.find('\n') != std::string_view::npos) {
      fail("names a class by text of several lines");
    }
  }
  make_global(module->text, name->text);
}

void Unpickler::reduce() {
  const Node* arguments = pop();
  const Node* callee = pop();
  if (arguments->kind != Kind::kTuple) fail("calls with something that is not a tuple");
  if (callee->kind != Kind::kGlobal) fail("calls something that is not a name");
  // These are filled by opcodes that follow, so they must be dicts already. What they begin with is
  // referred to, not copied: it may serve many.
  const bool is_defaultdict = callee->text == "collections\ndefaultdict";  // its factory is ignored
  if (is_defaultdict || callee->text == "collections\nOrderedDict" ||
      callee->text == "collections\nCounter") {
    const size_t first = is_defaultdict ? 1 : 0;
    if (arguments->items.size() > first + 1) fail("makes a dict of too many arguments");
    const Node* state = arguments->items.size() > first ? arguments->items[first] : nullptr;
    push(Kind::kDict)->state = state;
    return;
  }
  push(Kind::kCall)->items = {callee, arguments};
}

// Attributes: OrderedDict's _metadata say, which is not part of the value; numpy's arrays and
// dtypes are told by nothing else.
void Unpickler::build() {
  const Node* state = pop();
  Node* object = top();
  if (object->kind == Kind::kCall) object->state = state;
}

void Unpickler::pop_value() {
  const size_t floor = marks_.empty() ? 0 : marks_.back();
  if (!marks_.empty() && stack_.size() == floor) {
    marks_.pop_back();
  } else {
    pop();
  }
}

// A frame tells how much to read ahead; what it holds follows as if it were not there.
void Unpickler::skip_frame() {
  if (take_uint(8) > pickle_.size() - at_) fail_cut_off("a frame");
}

void Unpickler::memo_get(uint64_t index) {
  if (index >= memo_.size() || memo_[index] == nullptr) fail("recalls a value that was not kept");
  stack_.push_back(memo_[index]);
}

void Unpickler::memo_put(uint64_t index) {
  // Every index costs at least two bytes of pickle, so a greater one is a fault, not a large file.
  if (index > pickle_.size()) fail("keeps a value under a number beyond the file's size");
  if (index >= memo_.size()) memo_.resize(index + 1, nullptr);
  num_kept_ += memo_[index] == nullptr;
  memo_[index] = top();
}

const Node& Unpickler::load() {
  const Node& result = load_next();
  if (at_ != pickle_.size()) fail("stops before the end of the record");
  return result;
}

const Node& Unpickler::load_next() {
  // Each pickle has its own memo.
  memo_.clear();
  num_kept_ = 0;
  for (;;) {
    opcode_at_ = at_;
    const char opcode = take(1, "a value")[0];
    if (opcode == '.') {  // STOP
      const Node* result = pop();
      if (!stack_.empty() || !marks_.empty()) fail("stops while values are left over");
      return *result;
    }
    if (!step_value(opcode) && !step_stack(opcode)) fail_opcode(opcode);
  }
}

// The opcodes that make a value of the bytes that follow; whether `opcode` is one.
bool Unpickler::step_value(char opcode) {
  switch (opcode) {
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
    case '\x8b':  // LONG4: a size below 2^31, its sign bit would make it negative
      push_long(take(take_uint(4), "an int"));
      break;
    case 'G':  // BINFLOAT
      push_float();
      break;
    case 'X':     // BINUNICODE
    case '\x8c':  // SHORT_BINUNICODE
    case '\x8d':  // BINUNICODE8
      push_text(Kind::kString, take(take_uint(opcode == 'X'      ? 4
                                              : opcode == '\x8c' ? 1
                                                                 : 8),
                                    "a str"));
      break;
    case 'U':  // SHORT_BINSTRING
    case 'T':  // BINSTRING
      push_text(Kind::kString, take(take_uint(opcode == 'U' ? 1 : 4), "a str"));
      stack_.back()->integer = 1;
      break;
    case 'C':     // SHORT_BINBYTES
    case 'B':     // BINBYTES
    case '\x8e':  // BINBYTES8
    case '\x96':  // BYTEARRAY8
      push_text(Kind::kBytes, take(take_uint(opcode == 'C' ? 1 : opcode == 'B' ? 4 : 8), "bytes"));
      break;
    case 'c': {  // GLOBAL
      const std::string_view module = take_line();
      make_global(module, take_line());
      break;
    }
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
    default:
      return false;
  }
  return true;
}

// The opcodes that work on the stack and the memo; whether `opcode` is one.
bool Unpickler::step_stack(char opcode) {
  switch (opcode) {
    case '\x80':  // PROTO
      if (const uint64_t protocol = take_uint(1); protocol < 2 || protocol > 5) {
        fail("announces pickle protocol " + std::to_string(protocol));
      }
      break;
    case '\x95':  // FRAME
      skip_frame();
      break;
    case '(':  // MARK
      marks_.push_back(stack_.size());
      break;
    case 't':     // TUPLE
    case '\x91':  // FROZENSET
    {
      auto items = pop_mark();
      push(opcode == 't' ? Kind::kTuple : Kind::kSet)->items = std::move(items);
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
    case '\x90':  // ADDITEMS
      add_items();
      break;
    case '\x93':  // STACK_GLOBAL
      stack_global();
      break;
    case 'R':     // REDUCE
    case '\x81':  // NEWOBJ: class and arguments, as REDUCE
      reduce();
      break;
    case 'b':  // BUILD
      build();
      break;
    case 'Q': {  // BINPERSID
      const Node* id = pop();
      push(Kind::kStorage)->items = {id};
      storages_.push_back(stack_.back());
      break;
    }
    case '0':  // POP
      pop_value();
      break;
    case '1':  // POP_MARK
      pop_mark();
      break;
    case '2':  // DUP
      stack_.push_back(top());
      break;
    case 'h':  // BINGET
    case 'j':  // LONG_BINGET
      memo_get(take_uint(opcode == 'h' ? 1 : 4));
      break;
    case 'q':  // BINPUT
    case 'r':  // LONG_BINPUT
      memo_put(take_uint(opcode == 'q' ? 1 : 4));
      break;
    case '\x94':  // MEMOIZE
      memo_put(num_kept_);
      break;
    default:
      return false;
  }
  return true;
}

void Unpickler::fail_opcode(char opcode) const {
  struct Named {
    char opcode;
    const char* name;
  };
  constexpr Named kRefused[] = {
      {'\x92', "NEWOBJ_EX"}, {'i', "INST"},           {'o', "OBJ"},
      {'\x82', "EXT1"},      {'\x83', "EXT2"},        {'\x84', "EXT4"},
      {'P', "PERSID"},       {'\x97', "NEXT_BUFFER"}, {'\x98', "READONLY_BUFFER"}};
  std::string name;
  for (const Named& refused : kRefused) {
    if (refused.opcode == opcode) name = std::string(", ") + refused.name;
  }
  fail("is opcode " + std::to_string(static_cast<unsigned char>(opcode)) + name +
       ", which torch.load(weights_only=True) does not know either");
}

}  // namespace torchamp::checkpoint
