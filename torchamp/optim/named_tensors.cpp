#include "torchamp/optim/named_tensors.h"

#include <sstream>
#include <variant>

#include <c10/core/ScalarType.h>

#include "torchamp/base/words.h"

namespace torchamp::optim::detail {
namespace {

std::string describe(const at::Tensor& tensor) {
  std::ostringstream text;
  text << c10::toString(tensor.scalar_type()) << tensor.sizes();
  return text.str();
}

// Whether a value of dtype `saved` may be copied into one of dtype `own`.
bool is_convertible(at::ScalarType saved, at::ScalarType own) {
  if (saved == own) return true;
  if (c10::isComplexType(saved) || c10::isComplexType(own)) {
    return c10::isComplexType(saved) && c10::isComplexType(own);
  }
  if (c10::isFloatingType(saved) || c10::isFloatingType(own)) {
    return c10::isFloatingType(saved) && c10::isFloatingType(own);
  }
  return false;  // counters and flags: a change of type would be a change of meaning
}

}  // namespace

void NamedCopies::expect(const std::string& key, const at::Tensor& to) {
  allow(key);
  const std::string name = base::to_string(key);
  const base::Value* saved = state_.find(key);
  if (saved == nullptr) {
    missing_.push_back(name);
    return;
  }
  const auto* from = std::get_if<at::Tensor>(&saved->storage());
  if (from == nullptr || !from->defined()) {
    different_.push_back(name + " is " + base::with_article(saved->type_name()) + ", not a tensor");
  } else if (from->sizes() != to.sizes() ||
             !is_convertible(from->scalar_type(), to.scalar_type())) {
    different_.push_back(name + " is " + describe(*from) + ", not " + describe(to));
  } else {
    copies_.push_back({*from, to});
  }
}

void NamedCopies::report(base::Differences& differences) const {
  std::vector<std::string> unexpected;
  for (const base::StateDict::Entry& entry : state_.entries()) {
    const auto* key = std::get_if<std::string>(&entry.key);
    if (key == nullptr || !known_.contains(*key)) unexpected.push_back(base::to_string(entry.key));
  }
  differences.add("missing", missing_);
  differences.add("unexpected", unexpected);
  differences.add("of another shape or type", different_);
}

}  // namespace torchamp::optim::detail
