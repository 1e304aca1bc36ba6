#pragma once
// What a float16 op must return: its float32 result rounded once, judged by float64.

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <torch/torch.h>

namespace torchamp::testing {

using Tensors = std::vector<torch::Tensor>;
using Function = std::function<torch::Tensor(const Tensors&)>;

/// Distance of float16 numbers at x: half of it is what rounding may move x by.
inline torch::Tensor spacing_of_half(const torch::Tensor& x) {
  const torch::Tensor exponent = torch::floor(torch::log2(x.abs().clamp_min(std::ldexp(1.0, -14))));
  return torch::exp2(exponent - 10);
}

/// Expects |half - exact| <= one rounding to float16 + the error of the float32 result. The latter
/// is taken four times: float32 sums in another order err otherwise, by as much. `more` is a part
/// of the largest exact number, for what goes through a float16 tensor between two ops.
inline void expect_one_rounding(const torch::Tensor& half, const torch::Tensor& single,
                                const torch::Tensor& exact, double more, const std::string& what) {
  ASSERT_EQ(half.scalar_type(), torch::kHalf) << what;
  ASSERT_EQ(half.sizes(), exact.sizes()) << what;
  if (exact.numel() == 0) return;
  const torch::Tensor error = (half.to(torch::kDouble) - exact).abs();
  const double of_single = (single.to(torch::kDouble) - exact).abs().max().item<double>();
  const torch::Tensor bound = 0.5 * spacing_of_half(exact) * 1.001 + 4 * of_single +
                              more * exact.abs().max().item<double>();
  const torch::Tensor excess = (error - bound).max();
  EXPECT_LE(excess.item<double>(), 0.0)
      << what << ": error " << error.max().item<double>() << " of numbers up to "
      << exact.abs().max().item<double>() << ", float32 errs by " << of_single;
}

struct Results {
  torch::Tensor output;
  Tensors grads;
};

/// The function of `inputs` in `dtype`, and the gradients of those of floats.
inline Results run(const Function& function, const Tensors& inputs, torch::ScalarType dtype,
                   const torch::Tensor& grad_seed) {
  Tensors arguments, leaves;
  for (const torch::Tensor& input : inputs) {
    torch::Tensor argument = input.is_floating_point() ? input.to(dtype) : input;
    if (argument.is_floating_point()) {
      argument = argument.detach().requires_grad_();
      leaves.push_back(argument);
    }
    arguments.push_back(argument);
  }
  Results results;
  results.output = function(arguments);
  if (grad_seed.defined()) {
    results.grads = torch::autograd::grad({results.output}, leaves,
                                          {grad_seed.to(dtype).expand(results.output.sizes())},
                                          /*retain_graph=*/std::nullopt, /*create_graph=*/false,
                                          /*allow_unused=*/true);
  }
  results.output = results.output.detach();
  return results;
}

/// Runs the function in float16, float32 and float64 of the same float16 inputs, and expects one
/// rounding in the output and in every gradient.
inline void check_op(const std::string& name, const Function& function, const Tensors& inputs,
                     double more_forward = 0, double more_backward = 0) {
  const torch::Tensor probe = run(function, inputs, torch::kFloat, {}).output;
  const torch::Tensor seed = torch::randn(probe.sizes()).to(torch::kHalf);
  const Results half = run(function, inputs, torch::kHalf, seed);
  const Results single = run(function, inputs, torch::kFloat, seed);
  const Results exact = run(function, inputs, torch::kDouble, seed);
  expect_one_rounding(half.output, single.output, exact.output, more_forward, name + ", output");
  EXPECT_EQ(half.output.strides(), single.output.strides()) << name;
  for (size_t i = 0; i < half.grads.size(); ++i) {
    if (!exact.grads[i].defined()) continue;
    expect_one_rounding(half.grads[i], single.grads[i], exact.grads[i], more_backward,
                        name + ", gradient " + std::to_string(i));
  }
}

inline torch::Tensor half(at::IntArrayRef sizes) { return torch::randn(sizes).to(torch::kHalf); }

/// The same numbers, differently laid out in memory.
inline torch::Tensor transposed(const torch::Tensor& x) {
  return x.transpose(-1, -2).contiguous().transpose(-1, -2);
}
inline torch::Tensor sliced(const torch::Tensor& x) {
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.back() += 5;
  const torch::Tensor larger = torch::full(sizes, std::nan(""), x.options());
  const torch::Tensor part = larger.narrow(-1, 2, x.size(-1));
  part.copy_(x);
  return part;
}
inline torch::Tensor channels_last(const torch::Tensor& x) {
  return x.contiguous(x.dim() == 5 ? torch::MemoryFormat::ChannelsLast3d
                                   : torch::MemoryFormat::ChannelsLast);
}

}  // namespace torchamp::testing
