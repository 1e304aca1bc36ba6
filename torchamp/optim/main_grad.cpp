#include "torchamp/optim/main_grad.h"

#include <mutex>

#include <ATen/TensorOperators.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include "torchamp/multi_tensor/pending_factors.h"

namespace torchamp::optim {
namespace {

// The lock under which AccumulateGrad reads and writes `.grad`.
struct NodeMutex : torch::autograd::Node {
  static std::mutex& of(torch::autograd::Node& node) { return node.*(&NodeMutex::mutex_); }
};

}  // namespace

at::Tensor main_grad(const at::Tensor& parameter) {
  at::Tensor gradient = parameter.grad();
  if (!gradient.defined()) return gradient;
  if (multi_tensor::is_16bit(gradient.scalar_type())) gradient = gradient.to(at::kFloat);
  if (const auto pending = multi_tensor::pending_factors(parameter.grad())) {
    for (const at::Tensor& factor : {pending->factor, pending->second_factor}) {
      if (factor.defined()) gradient = gradient * factor.reshape(at::IntArrayRef());
    }
  }
  return gradient;
}

namespace detail {

void widen_gradient(const at::Tensor& parameter) {
  // Hooks run before AccumulateGrad takes its lock; another thread's backward pass may be in it.
  const auto accumulator = torch::autograd::impl::try_get_grad_accumulator(parameter);
  std::unique_lock<std::mutex> lock;
  if (accumulator) lock = std::unique_lock(NodeMutex::of(*accumulator));
  at::Tensor& gradient = parameter.mutable_grad();
  if (!gradient.defined() || !multi_tensor::is_16bit(gradient.scalar_type())) return;
  const at::Tensor wide = gradient.to(at::kFloat);
  if (const auto pending = multi_tensor::pending_factors(gradient)) {
    multi_tensor::set_pending_factors(gradient, {});
    multi_tensor::set_pending_factors(wide, *pending);
  }
  gradient = wide;
}

}  // namespace detail
}  // namespace torchamp::optim
