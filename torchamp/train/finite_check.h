#pragma once
// FiniteCheck: which tensors of a run hold numbers that training can neither use nor get rid of.

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace torchamp::train {

/// Looks through floating and complex tensors, each read once; others and empty ones are good.
class FiniteCheck {
 public:
  /// What is good beside finite numbers.
  enum class Accepts {
    kNothing,
    kInfinity,         // buffers: masks hold it
    kInfinityFromZero  // second moments: the square of a large gradient; no number below 0
  };
  void add(std::string name, const at::Tensor& tensor, Accepts accepts = Accepts::kNothing);
  /// The names of those that are not good, in the order of add(). Waits once for the device.
  std::vector<std::string> bad_names() const;

 private:
  struct Item {
    std::string name;
    Accepts accepts;
  };
  std::vector<Item> items_;
  std::vector<at::Tensor> extremes_;  // smallest and largest of each, NaN where there is one
};

}  // namespace torchamp::train
