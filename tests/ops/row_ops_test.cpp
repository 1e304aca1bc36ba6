// GELU and layer norm on the dispatcher, against LibTorch's own ops in float64.

#include <functional>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "torchamp/ops/install.h"

namespace torchamp::ops {
namespace {

using torch::Tensor;
using Tensors = std::vector<Tensor>;
using Function = std::function<Tensor(const Tensors&)>;

class RowOps : public ::testing::Test {
 protected:
  RowOps() {
    torch::manual_seed(6);
    at::set_num_threads(2);
    install();
  }
  ~RowOps() override { uninstall(); }
};

double unit(torch::ScalarType dtype) {
  return dtype == torch::kFloat ? 0x1p-23 : dtype == torch::kBFloat16 ? 0x1p-7 : 0x1p-10;
}

void expect_near(const Tensor& actual, const Tensor& exact, double more, const std::string& what) {
  ASSERT_EQ(actual.sizes(), exact.sizes()) << what;
  const Tensor bound = exact.abs() * (0.501 * unit(actual.scalar_type())) + more;
  const Tensor error = (actual.to(torch::kDouble) - exact).abs();
  EXPECT_LE((error - bound).max().item<double>(), 0.0)
      << what << ": error " << error.max().item<double>();
}

// The result and the gradients of all inputs, each cast to its dtype.
Tensors run(const Function& f, const Tensors& inputs,
            const std::vector<torch::ScalarType>& dtypes) {
  Tensors leaves;
  for (size_t i = 0; i < inputs.size(); ++i) {
    leaves.push_back(inputs[i].to(dtypes[i]).detach().requires_grad_());
  }
  const Tensor y = f(leaves);
  torch::manual_seed(7);
  const Tensor seed = torch::randn(y.sizes()).to(torch::kBFloat16).to(y.scalar_type());
  Tensors results = torch::autograd::grad({y}, leaves, {seed});
  results.insert(results.begin(), y.detach());
  return results;
}

template <typename F>
auto off_and_on(F&& work) {
  uninstall();
  auto off = work();
  install();
  return std::pair(off, work());
}

TEST_F(RowOps, GeluIsThatOfFloat64RoundedOnce) {
  for (const auto dtype : {torch::kFloat, torch::kBFloat16, torch::kHalf}) {
    for (const char* kind : {"none", "tanh"}) {
      if (dtype != torch::kFloat && std::string(kind) == "none") continue;
      const Tensor x = (torch::randn({3, 40, 41}) * 3).to(dtype);
      for (const bool is_transposed : {false, true}) {
        const Function f = [&](const Tensors& inputs) {
          return torch::gelu(is_transposed ? inputs[0].transpose(0, 1) : inputs[0], kind);
        };
        const Tensors ours = run(f, {x}, {dtype}), exact = run(f, {x}, {torch::kDouble});
        const Tensors theirs = std::get<0>(off_and_on([&] { return run(f, {x}, {dtype}); }));
        for (size_t i = 0; i < 2; ++i) {
          expect_near(ours[i], exact[i], dtype == torch::kHalf ? 4e-6 : 3e-6, kind);
          EXPECT_EQ(ours[i].scalar_type(), dtype);
          EXPECT_EQ(ours[i].strides(), theirs[i].strides());
        }
      }
    }
  }
}

TEST_F(RowOps, LayerNormIsThatOfFloat64RoundedOnce) {
  for (const auto& [dtype, parameters] :
       {std::pair(torch::kFloat, torch::kFloat), std::pair(torch::kBFloat16, torch::kFloat),
        std::pair(torch::kHalf, torch::kFloat), std::pair(torch::kBFloat16, torch::kBFloat16),
        std::pair(torch::kHalf, torch::kHalf)}) {
    for (const int64_t C : {1, 7, 64, 515}) {
      for (const int parameter_count : {0, 1, 2}) {
        const Tensor x = (torch::randn({3, 50, C}) + 1).to(dtype);
        const Tensor weight = torch::rand({C}).to(parameters),
                     bias = torch::randn({C}).to(parameters);
        const Function f = [&](const Tensors& inputs) {
          return torch::layer_norm(inputs[0], {C}, parameter_count > 0 ? inputs[1] : Tensor(),
                                   parameter_count > 1 ? inputs[2] : Tensor());
        };
        Tensors inputs = {x, weight, bias};
        inputs.resize(static_cast<size_t>(1 + parameter_count));
        std::vector<torch::ScalarType> dtypes(inputs.size(), parameters);
        dtypes[0] = dtype;
        const std::vector<torch::ScalarType> wide(inputs.size(), torch::kDouble);
        const Tensors exact = run(f, inputs, wide);
        const auto [theirs, ours] = off_and_on([&] { return run(f, inputs, dtypes); });
        const std::string what = c10::str(dtype, " ", parameters, " ", C, " ", parameter_count);
        // A mean that LibTorch hands over in 16 bits is known to 16 bits in the backward pass.
        const bool is_rounded_between =
            parameters != torch::kFloat || (parameter_count == 0 && dtype != torch::kFloat);
        for (size_t i = 0; i < ours.size(); ++i) {
          EXPECT_EQ(ours[i].scalar_type(), theirs[i].scalar_type()) << what;
          EXPECT_EQ(ours[i].strides(), theirs[i].strides()) << what;
          const double largest = exact[i].abs().max().item<double>();
          // A row of one number has a deviation of sqrt(eps), so that float32 errs 300 times more.
          const double more = C == 1 ? 2e-3 : 1e-5 * (1 + largest);
          if (i == 0 || !is_rounded_between) {
            expect_near(ours[i], exact[i], more, what + c10::str(" result ", i));
          } else {
            const double of_theirs =
                (theirs[i].to(torch::kDouble) - exact[i]).abs().max().item<double>();
            const double of_ours =
                (ours[i].to(torch::kDouble) - exact[i]).abs().max().item<double>();
            EXPECT_LE(of_ours, 1.5 * of_theirs + more) << what << " result " << i;
          }
        }
      }
    }
  }
}

TEST_F(RowOps, SumsOfLayerNormDoNotDependOnThreads) {
  const Tensor x = torch::randn({3000, 70}), weight = torch::rand({70});
  const Function f = [](const Tensors& in) { return torch::layer_norm(in[0], {70}, in[1]); };
  const std::vector<torch::ScalarType> dtypes = {torch::kBFloat16, torch::kFloat};
  at::set_num_threads(1);
  const Tensors one = run(f, {x, weight}, dtypes);
  at::set_num_threads(2);
  const Tensors two = run(f, {x, weight}, dtypes);
  for (size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(torch::equal(one[i], two[i])) << i;
}

TEST_F(RowOps, DoubleBackwardIsThatOfLibTorch) {
  const Tensor x = torch::randn({4, 6, 10}), v = torch::randn({4, 6, 10}), w = torch::rand({10});
  const std::vector<Function> functions = {
      [](const Tensors& in) { return torch::gelu(in[0], "tanh"); },
      [](const Tensors& in) { return torch::gelu(in[0], "none"); },
      [&](const Tensors& in) { return torch::layer_norm(in[0], {10}, w, w); },
      [](const Tensors& in) { return torch::log_softmax(in[0], -1); },
  };
  for (size_t i = 0; i < functions.size(); ++i) {
    const auto [off, on] = off_and_on([&] {
      const Tensor leaf = x.detach().requires_grad_();
      const Tensor y = functions[i]({leaf});
      const Tensor g = torch::autograd::grad({(y * v).sum()}, {leaf}, {}, true, true)[0];
      return torch::autograd::grad({g.pow(2).sum()}, {leaf})[0];
    });
    EXPECT_TRUE(torch::allclose(off, on, 1e-4, 1e-5)) << i << (off - on).abs().max();
    EXPECT_GT(off.abs().max().item<double>(), 1e-2);
  }
}

// What is not in the fast case: the same bits or the same error.
TEST_F(RowOps, OtherCallsGoOnToLibTorch) {
  const Tensor f = torch::randn({6, 8}), d = f.to(torch::kDouble), b = f.to(torch::kBFloat16);
  const std::vector<std::function<Tensor()>> calls = {
      [&] { return torch::gelu(d, "tanh"); },
      [&] { return torch::gelu(b, "none"); },
      [&] { return torch::gelu_backward(b, b, "none"); },
      [&] { return torch::gelu(f, "other"); },
      [&] { return torch::gelu(f.slice(1, 0, 8, 2), "none"); },
      [&] {
        return torch::gelu(torch::empty({0, 3}), "none");
      },
      [&] { return torch::gelu(torch::ones({2}, torch::kLong)); },
      [&] { return torch::gelu_backward(f, d); },
      [&] { return torch::layer_norm(d, {8}); },
      [&] { return torch::layer_norm(f, {7}); },
      [&] { return torch::layer_norm(f, {8}, torch::ones({7})); },
      [&] { return torch::layer_norm(f, {8}, torch::ones({8}, torch::kBFloat16)); },
      [&] {
        return torch::layer_norm(b, {8}, torch::ones({8}), torch::ones({8}, torch::kBFloat16));
      },
      [&] {
        return torch::layer_norm(torch::empty({0, 8}), {8});
      },
      [&] {
        return torch::layer_norm(torch::empty({3, 0}), {0});
      },
  };
  for (size_t i = 0; i < calls.size(); ++i) {
    const auto [off, on] = off_and_on([&] {
      try {
        return std::pair(calls[i](), std::string());
      } catch (const c10::Error& error) {
        return std::pair(Tensor(), std::string(error.what_without_backtrace()));
      }
    });
    EXPECT_EQ(off.second, on.second) << i;
    if (off.first.defined()) {
      EXPECT_TRUE(torch::equal(off.first, on.first)) << i;
    }
  }
}

}  // namespace
}  // namespace torchamp::ops
