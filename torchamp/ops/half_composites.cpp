// float16 recurrent layers on CPU: as one float32 layer, whose weights are widened once a call and
// not once a time step. And what else LibTorch composes of ops in a way that float16 suffers from.

#include <algorithm>
#include <tuple>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/ctc_loss_ops.h>
#include <ATen/ops/gru_ops.h>
#include <ATen/ops/lstm_ops.h>
#include <ATen/ops/max_pool1d_ops.h>
#include <ATen/ops/rnn_relu_ops.h>
#include <ATen/ops/rnn_tanh_ops.h>

#include "torchamp/ops/half_op.h"
#include "torchamp/ops/op_kernel.h"

namespace torchamp::ops::detail {
namespace {

class HalfList {
 public:
  template <class... Args>
  static bool takes(const Args&... args) {
    return (is_half(args) && ...);
  }

 private:
  static bool is_half(const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.is_floating_point()) return true;  // batch sizes
    return HalfCall().takes(tensor);
  }
  static bool is_half(at::TensorList tensors) {
    return std::all_of(tensors.begin(), tensors.end(),
                       [](const at::Tensor& tensor) { return is_half(tensor); });
  }
  template <class T>
  static bool is_half(const T& /*no_tensor*/) {
    return true;
  }
};

// Casts that autograd records: we stand above it here.
at::Tensor cast(const at::Tensor& tensor, at::ScalarType from, at::ScalarType to) {
  return tensor.defined() && tensor.scalar_type() == from ? tensor.to(to) : tensor;
}
at::Tensor to_single(const at::Tensor& tensor) { return cast(tensor, at::kHalf, at::kFloat); }
std::vector<at::Tensor> to_single(at::TensorList tensors) {
  std::vector<at::Tensor> singles;
  singles.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) singles.push_back(to_single(tensor));
  return singles;
}
template <class T>
T to_single(const T& value) {
  return value;
}

at::Tensor rounded(const at::Tensor& output) { return cast(output, at::kFloat, at::kHalf); }
template <class... Outputs>
std::tuple<Outputs...> rounded(const std::tuple<Outputs...>& outputs) {
  return std::apply(
      [](const auto&... output) { return std::tuple<Outputs...>(rounded(output)...); }, outputs);
}

// The op as a whole in float32. Stands on the key of autograd, since LibTorch composes it of ops
// that autograd records.
template <class Op, class Schema = typename Op::schema>
struct HalfWhole;

template <class Op, class Return, class... Args>
struct HalfWhole<Op, Return(Args...)> {
  static inline Before before;
  static Return call(c10::DispatchKeySet keys, Args... args) {
    if (!HalfList::takes(args...)) {
      return before.call<Return, Args...>(keys, std::forward<Args>(args)...);
    }
    const c10::impl::ExcludeDispatchKeyGuard no_autocast{c10::DispatchKey::AutocastCPU};
    return rounded(Op::call(to_single(args)...));
  }
};

// Without gradients LibTorch has a loop of its own for one dimension.
struct MaxPool1d {
  static inline Before before;
  static at::Tensor call(c10::DispatchKeySet keys, const at::Tensor& self, at::IntArrayRef kernel,
                         at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation,
                         bool ceil_mode) {
    const auto pool = [&](const at::Tensor& tensor) {
      return before.call<at::Tensor, const at::Tensor&, at::IntArrayRef, at::IntArrayRef,
                         at::IntArrayRef, at::IntArrayRef, bool>(keys, tensor, kernel, stride,
                                                                 padding, dilation, ceil_mode);
    };
    if (!HalfCall().takes(self) || (self.requires_grad() && at::GradMode::is_enabled())) {
      return pool(self);
    }
    const KernelsOnly kernels_only;
    return to_half(pool(to_float(self)));
  }
};

constexpr OpTraits kComposite{.is_composite = true};
constexpr OpTraits kCompositeForNoFp16{.is_for_cpus_without_fp16 = true, .is_composite = true};
constexpr const char* kRecurrent = "widens the weights at each time step, 1.4 to 3.4 times slower";
constexpr const char* kMeanLoss = "LibTorch has no fp16 kernel for the mean of losses";
constexpr const char* kPooling = "fp16 is 5 times slower than fp32 without gradients";

}  // namespace

void add_half_composites(OpTable& table) {
  namespace op = at::_ops;
  table.add<op::lstm_input, HalfWhole<op::lstm_input>>(kFloat16, kRecurrent, kCompositeForNoFp16);
  table.add<op::lstm_data, HalfWhole<op::lstm_data>>(kFloat16, kRecurrent, kCompositeForNoFp16);
  table.add<op::gru_input, HalfWhole<op::gru_input>>(kFloat16, kRecurrent, kCompositeForNoFp16);
  table.add<op::gru_data, HalfWhole<op::gru_data>>(kFloat16, kRecurrent, kCompositeForNoFp16);
  table.add<op::rnn_tanh_input, HalfWhole<op::rnn_tanh_input>>(kFloat16, kRecurrent,
                                                               kCompositeForNoFp16);
  table.add<op::rnn_tanh_data, HalfWhole<op::rnn_tanh_data>>(kFloat16, kRecurrent,
                                                             kCompositeForNoFp16);
  table.add<op::rnn_relu_input, HalfWhole<op::rnn_relu_input>>(kFloat16, kRecurrent,
                                                               kCompositeForNoFp16);
  table.add<op::rnn_relu_data, HalfWhole<op::rnn_relu_data>>(kFloat16, kRecurrent,
                                                             kCompositeForNoFp16);
  table.add<op::ctc_loss_IntList, HalfWhole<op::ctc_loss_IntList>>(kFloat16, kMeanLoss, kComposite);
  table.add<op::ctc_loss_Tensor, HalfWhole<op::ctc_loss_Tensor>>(kFloat16, kMeanLoss, kComposite);
  table.add<op::max_pool1d, MaxPool1d>(kFloat16, kPooling, kComposite);
}

}  // namespace torchamp::ops::detail
