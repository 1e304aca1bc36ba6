#include "torchamp/ops/call_key.h"

#include <bit>

#include <c10/util/SmallVector.h>

namespace torchamp::ops::detail {
namespace {

constexpr int64_t kExact = 64;  // up to here a size is a class of its own
constexpr int kBits = 4;        // leading bits that count above

std::string size_class(int64_t size) {
  if (size <= kExact) return std::to_string(size);
  const int dropped = std::bit_width(static_cast<uint64_t>(size)) - kBits;
  const int64_t floor = (size >> dropped) << dropped;
  if (size == floor) return std::to_string(size);
  // Kernels that go 16 elements at a time have no rest to do for the former.
  return std::to_string(floor) + (size % 16 == 0 ? "+16n" : "+");
}

// Nothing for a contiguous tensor; "@0231": the dimensions from the outermost in memory to the
// innermost; behind it "s" for gaps in memory, "e" for elements that share it, "l" where LibTorch
// takes the tensor for channels_last.
std::string layout(const at::Tensor& tensor) {
  std::string text;
  if (!tensor.is_contiguous()) {
    c10::SmallVector<int64_t, 8> order;
    for (int64_t i = 0; i < tensor.dim(); ++i) {
      if (tensor.size(i) == 1) continue;
      auto place = order.end();
      while (place != order.begin() && tensor.stride(*(place - 1)) < tensor.stride(i)) --place;
      order.insert(place, i);
    }
    text = "@";
    for (const int64_t i : order) text += std::to_string(i);
    if (!tensor.is_non_overlapping_and_dense()) text += 's';
    for (const int64_t i : order) {
      if (tensor.stride(i) != 0) continue;
      text += 'e';
      break;
    }
  }
  if (tensor.suggest_memory_format() != at::MemoryFormat::Contiguous) text += 'l';
  return text;
}

}  // namespace

void CallText::add(const at::Tensor& tensor) {
  text_ += ' ';
  if (!tensor.defined()) {
    text_ += '-';
    return;
  }
  for (int64_t i = 0; i < tensor.dim(); ++i) {
    if (i > 0) text_ += 'x';
    text_ += size_class(tensor.size(i));
  }
  if (tensor.dim() == 0) text_ += "scalar";
  text_ += layout(tensor);
  if (tensor.scalar_type() == at::kFloat) text_ += ":float";
}

void CallText::add(const c10::Scalar& scalar) {
  text_ += scalar.equal(0) ? " 0" : scalar.equal(1) ? " 1" : " x";
}

void CallText::add(const c10::SymInt& value) {
  text_ += ' ' + std::to_string(value.maybe_as_int().value());
}

void CallText::add(c10::SymIntArrayRef values) {
  text_ += " [";
  for (size_t i = 0; i < values.size(); ++i) {
    text_ += (i == 0 ? "" : ",") + std::to_string(values[i].maybe_as_int().value());
  }
  text_ += ']';
}

void CallText::add(const at::OptionalSymIntArrayRef& values) {
  if (values.has_value()) {
    add(*values);
  } else {
    text_ += " -";
  }
}

}  // namespace torchamp::ops::detail
