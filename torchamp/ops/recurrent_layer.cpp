// One layer of an LSTM, which LibTorch hands to oneDNN as one op: in the tensors' own 16-bit dtype,
// or in float32. oneDNN's bfloat16 backward pass takes up to twice float32's time for batches of
// one or two, so the forward pass chooses for both. What it leaves to the backward pass (the
// workspace) is in the layout of the dtype that computed, and carries that dtype here: LibTorch's
// own is of bytes, that of float32 is of floats.

#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>

#include <ATen/core/Tensor.h>
#include <ATen/ops/mkldnn_rnn_layer_backward_ops.h>
#include <ATen/ops/mkldnn_rnn_layer_ops.h>

#include "torchamp/ops/chosen_op.h"
#include "torchamp/ops/op_kernel.h"
#include "torchamp/ops/widened_op.h"

namespace torchamp::ops::detail {
namespace {

using Op = at::_ops::mkldnn_rnn_layer;
using BackwardOp = at::_ops::mkldnn_rnn_layer_backward;
using Wide = Widened<Op>;
using WideBackward = Widened<BackwardOp, HalfOpRule{.allows_float = true}>;

using Outputs = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;  // y, h, c, workspace
using Grads =
    std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

bool is_of_float32(const at::Tensor& workspace) {
  return workspace.defined() && workspace.scalar_type() == at::kFloat;
}

struct LstmLayerBackward {
  static inline Before before;

  static Grads call(c10::DispatchKeySet keys, const at::Tensor& input, const at::Tensor& weight_ih,
                    const at::Tensor& weight_hh, const at::Tensor& bias_ih,
                    const at::Tensor& bias_hh, const at::Tensor& h0, const at::Tensor& c0,
                    const at::Tensor& y, const at::Tensor& h, const at::Tensor& c,
                    const std::optional<at::Tensor>& grad_y,
                    const std::optional<at::Tensor>& grad_h,
                    const std::optional<at::Tensor>& grad_c, bool reverse, int64_t mode,
                    int64_t hidden_size, int64_t num_layers, bool has_biases, bool train,
                    bool bidirectional, at::IntArrayRef batch_sizes, bool batch_first,
                    const at::Tensor& workspace) {
    const auto with = [&](auto&& compute) {
      return compute(input, weight_ih, weight_hh, bias_ih, bias_hh, h0, c0, y, h, c, grad_y, grad_h,
                     grad_c, reverse, mode, hidden_size, num_layers, has_biases, train,
                     bidirectional, batch_sizes, batch_first,
                     is_of_float32(workspace) ? workspace.view(at::kByte) : workspace);
    };
    const at::ScalarType dtype =
        with([](const auto&... args) { return WideBackward::dtype_of(args...); });
    if (is_of_float32(workspace) && dtype != at::ScalarType::Undefined) {
      return with(
          [&](const auto&... args) { return WideBackward::compute(before, dtype, keys, args...); });
    }
    // LibTorch's, which refuses a workspace that is not of bytes.
    return before
        .call<Grads, const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
              const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
              const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&,
              const std::optional<at::Tensor>&, const std::optional<at::Tensor>&, bool, int64_t,
              int64_t, int64_t, bool, bool, bool, at::IntArrayRef, bool, const at::Tensor&>(
            keys, input, weight_ih, weight_hh, bias_ih, bias_hh, h0, c0, y, h, c, grad_y, grad_h,
            grad_c, reverse, mode, hidden_size, num_layers, has_biases, train, bidirectional,
            batch_sizes, batch_first, workspace);
  }
};

struct LstmLayer {
  static inline Before before;

  static Outputs call(c10::DispatchKeySet keys, const at::Tensor& input,
                      const at::Tensor& weight_ih, const at::Tensor& weight_hh,
                      const at::Tensor& bias_ih, const at::Tensor& bias_hh, const at::Tensor& h0,
                      const at::Tensor& c0, bool reverse, at::IntArrayRef batch_sizes, int64_t mode,
                      int64_t hidden_size, int64_t num_layers, bool has_biases, bool bidirectional,
                      bool batch_first, bool train) {
    const auto with = [&](auto&& compute) {
      return compute(input, weight_ih, weight_hh, bias_ih, bias_hh, h0, c0, reverse, batch_sizes,
                     mode, hidden_size, num_layers, has_biases, bidirectional, batch_first, train);
    };
    const at::ScalarType dtype = with([](const auto&... args) { return Wide::dtype_of(args...); });
    const auto run = [&](Way way) {
      if (way == Way::kFloat32) {
        return marked(
            with([&](const auto&... args) { return Wide::compute(before, dtype, keys, args...); }));
      }
      return before.call<Outputs, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                         const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                         bool, at::IntArrayRef, int64_t, int64_t, int64_t, bool, bool, bool, bool>(
          keys, input, weight_ih, weight_hh, bias_ih, bias_hh, h0, c0, reverse, batch_sizes, mode,
          hidden_size, num_layers, has_biases, bidirectional, batch_first, train);
    };
    const bool is_ours = dtype != at::ScalarType::Undefined && LstmLayerBackward::before.is_taken();
    const Rule rule = is_ours ? rule_for(dtype) : Rule();
    if (!rule.chooses || rule.standing == Way::kFloat32) return run(rule.standing);

    const Choosing choosing;
    return run(chosen_way<Op>(
        before, dtype,
        [&](auto& key) {
          for (const at::Tensor* tensor : {&input, &weight_ih, &weight_hh}) key.add(*tensor);
          for (const bool each : {has_biases, train}) key.add(each);
        },
        [&] {
          const int64_t count = input.numel() + weight_ih.numel() + weight_hh.numel();
          return count <= kMostWidened ? Ways{Way::kLibTorch, Way::kFloat32} : Ways{Way::kLibTorch};
        },
        [&](Way each) {
          const auto [y, h, c, workspace] = run(each);
          if (!train) return;
          // What the backward pass will cost, with the gradient of y alone, as usual.
          LstmLayerBackward::call(keys, input, weight_ih, weight_hh, bias_ih, bias_hh, h0, c0, y, h,
                                  c, y, std::nullopt, std::nullopt, reverse, mode, hidden_size,
                                  num_layers, has_biases, train, bidirectional, batch_sizes,
                                  batch_first, workspace);
        }));
  }

 private:
  static Outputs marked(Outputs outputs) {
    at::Tensor& workspace = std::get<3>(outputs);
    if (workspace.defined() && workspace.numel() > 0) workspace = workspace.view(at::kFloat);
    return outputs;
  }
};

constexpr const char* kRecurrent =
    "fp16 has no LSTM layer for this CPU, and bf16 is up to 2 times slower backward, for batches "
    "of one or two";

}  // namespace

void add_recurrent_layer(OpTable& table) {
  table.add<Op, LstmLayer>(k16Bit, kRecurrent);
  table.add<BackwardOp, LstmLayerBackward>(k16Bit, kRecurrent);
}

}  // namespace torchamp::ops::detail
