// 16-bit products by TorchAmp's own kernel: float64 is the judge, LibTorch the model for shapes,
// NaN and what is refused.

#include "torchamp/ops/own_products.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "torchamp/kernels/cpu/table.h"
#include "torchamp/ops/choices.h"
#include "torchamp/ops/install.h"

namespace torchamp::ops {
namespace {

using torch::Tensor;
using Tensors = std::vector<Tensor>;
using Function = std::function<Tensor(const Tensors&)>;

constexpr at::ScalarType kDtypes[] = {torch::kBFloat16, torch::kHalf};
constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

std::vector<const kernels::KernelTable*> tables_here() {
  std::vector<const kernels::KernelTable*> found;
  for (const kernels::KernelTable* table : kernels::cpu_tables()) {
    if (table->runs_here()) found.push_back(table);
  }
  return found;
}

class OwnProducts : public ::testing::Test {
 protected:
  OwnProducts() : threads_(at::get_num_threads()) {
    torch::manual_seed(7);
    clear_choices();
    install();
  }
  ~OwnProducts() override {
    kernels::use_cpu_table(*tables_here().back());
    at::set_num_threads(threads_);
    clear_choices();
    uninstall();
  }
  const int threads_;
};

// The same numbers, differently laid out in memory.
Tensor turned(const Tensor& x) {
  return x.dim() < 2 ? x : x.transpose(-1, -2).contiguous().transpose(-1, -2);
}
Tensor sliced(const Tensor& x) {
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.back() += 5;
  const Tensor part = torch::full(sizes, kNan, x.options()).narrow(-1, 2, x.size(-1));
  part.copy_(x);
  return part;
}
Tensor stepped(const Tensor& x) {
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.back() *= 2;
  const Tensor part = torch::full(sizes, kNan, x.options()).slice(-1, 0, sizes.back(), 2);
  part.copy_(x);
  return part;
}
using Layout = Tensor (*)(const Tensor&);
const Layout kLayouts[] = {[](const Tensor& x) { return x.contiguous(); }, turned, sliced, stepped};

Tensor random(at::IntArrayRef sizes, at::ScalarType dtype) { return torch::randn(sizes).to(dtype); }

Tensors to(const Tensors& inputs, at::ScalarType dtype) {
  Tensors result;
  for (const Tensor& each : inputs) result.push_back(each.to(dtype));
  return result;
}
Tensors magnitudes(const Tensors& inputs) {
  Tensors result;
  for (const Tensor& each : inputs) result.push_back(each.to(torch::kDouble).abs());
  return result;
}

// Half of the distance of numbers of the dtype at x.
Tensor half_unit(const Tensor& x, at::ScalarType dtype) {
  const bool is_half = dtype == torch::kHalf;
  const double lowest = std::ldexp(1.0, is_half ? -14 : -126);
  return torch::exp2(torch::floor(torch::log2(x.abs().clamp_min(lowest))) - (is_half ? 11 : 8));
}

// Expects |result - exact| <= one rounding + what a float32 sum of n products may err by:
// (n + 3) units of 2^-24 of the sum of their magnitudes. `magnitude` is the function of magnitudes.
void expect_rounded_once(const Tensor& result, const Tensor& exact, const Tensor& magnitude,
                         int64_t inner, const std::string& what) {
  ASSERT_EQ(result.sizes(), exact.sizes()) << what;
  if (exact.numel() == 0) return;
  const Tensor of_sum = magnitude * std::ldexp(static_cast<double>(inner + 3), -24);
  const Tensor bound = half_unit(exact.abs() + of_sum, result.scalar_type()) + of_sum;
  EXPECT_LE(((result.to(torch::kDouble) - exact).abs() - bound).max().item<double>(), 0.0) << what;
}

// All terms of `function` are added with positive factors.
void check(const std::string& name, const Function& function, const Tensors& inputs,
           int64_t inner) {
  const Tensor result = function(inputs);
  EXPECT_EQ(result.scalar_type(), inputs[0].scalar_type()) << name;
  EXPECT_EQ(result.strides(), function(to(inputs, torch::kFloat)).strides()) << name;
  expect_rounded_once(result, function(to(inputs, torch::kDouble)), function(magnitudes(inputs)),
                      inner, name + " of " + at::toString(result.scalar_type()));
  EXPECT_EQ(choices().size(), 0U) << name << ": not ours";
}

Tensor mm(const Tensors& x) { return torch::mm(x[0], x[1]); }
Tensor bmm(const Tensors& x) { return torch::bmm(x[0], x[1]); }
Tensor addmm(const Tensors& x) { return torch::addmm(x[0], x[1], x[2], 0.5, 2); }
Tensor baddbmm(const Tensors& x) { return torch::baddbmm(x[0], x[1], x[2], 0.5, 2); }

TEST_F(OwnProducts, AreRoundedOnceInEveryLayout) {
  for (const at::ScalarType dtype : kDtypes) {
    for (const auto& [m, k, n] : std::vector<std::array<int64_t, 3>>{{1, 1, 1},
                                                                     {4, 8, 8},
                                                                     {1, 65, 33},
                                                                     {33, 65, 1},
                                                                     {3, 70, 2},
                                                                     {16, 64, 64},
                                                                     {33, 77, 65},
                                                                     {50, 1, 20}}) {
      const Tensor a = random({m, k}, dtype), b = random({k, n}, dtype);
      const Tensor a3 = random({3, m, k}, dtype), b3 = random({3, k, n}, dtype);
      for (const Layout left : kLayouts) {
        for (const Layout right : kLayouts) {
          check("mm", mm, {left(a), right(b)}, k);
          check("bmm", bmm, {left(a3), right(b3)}, k);
          for (const Tensor& self : {random({n}, dtype), random({m, n}, dtype),
                                     random({m, 1}, dtype), random({1}, dtype)}) {
            check("addmm", addmm, {left(self), left(a), right(b)}, k);
          }
          for (const Tensor& self : {random({n}, dtype), random({m, n}, dtype),
                                     random({3, m, n}, dtype), random({3, 1, 1}, dtype)}) {
            check("baddbmm", baddbmm, {right(self), left(a3), right(b3)}, k);
          }
        }
      }
    }
  }
}

TEST_F(OwnProducts, AreTheSameInEveryTableAndForAnyNumberOfThreads) {
  for (const at::ScalarType dtype : kDtypes) {
    // In float16, and with a vector, enough for several threads: by rows, by columns, by a batch.
    const int64_t more = dtype == torch::kHalf ? 4 : 1;
    const Tensors inputs = {random({700 * more, 60}, dtype),    random({60, 12}, dtype),
                            random({1, 2000}, dtype),           random({2000, 500}, dtype),
                            random({25 * more, 20, 50}, dtype), random({25 * more, 50, 20}, dtype)};
    const auto compute = [&] {
      return Tensors{
          torch::mm(inputs[0], inputs[1]),         torch::mm(inputs[2], inputs[3]),
          torch::mm(inputs[2], turned(inputs[3])), torch::mm(inputs[3].t(), inputs[2].t()),
          torch::bmm(inputs[4], inputs[5]),        torch::mv(inputs[3].t(), inputs[2][0])};
    };
    Tensors first;
    for (const kernels::KernelTable* table : tables_here()) {
      if (table == tables_here().front()) continue;  // plain C++ is left to LibTorch: too slow
      kernels::use_cpu_table(*table);
      for (const int threads : {1, 2, 5}) {
        at::set_num_threads(threads);
        const Tensors results = compute();
        if (first.empty()) first = results;
        for (size_t i = 0; i < first.size(); ++i) {
          EXPECT_TRUE(torch::equal(results[i], first[i])) << table->name << " " << threads << i;
        }
      }
    }
    ASSERT_EQ(first.size(), 6U);
    EXPECT_EQ(choices().size(), 0U);
    const Tensors wide = to(inputs, torch::kDouble), size = magnitudes(inputs);
    expect_rounded_once(first[0], wide[0].mm(wide[1]), size[0].mm(size[1]), 60, "by rows");
    expect_rounded_once(first[1], wide[2].mm(wide[3]), size[2].mm(size[3]), 2000, "a row");
    expect_rounded_once(first[2], wide[2].mm(wide[3]), size[2].mm(size[3]), 2000, "a row, turned");
    expect_rounded_once(first[4], wide[4].bmm(wide[5]), size[4].bmm(size[5]), 50, "a batch");
  }
}

TEST_F(OwnProducts, OfAMatrixAndAVector) {
  for (const at::ScalarType dtype : kDtypes) {
    for (const auto& [m, k] : std::vector<std::pair<int64_t, int64_t>>{
             {1, 1}, {7, 5}, {33, 65}, {65, 33}, {300, 600}, {2, 9000}, {9000, 3}}) {
      const Tensor a = random({m, k}, dtype), x = random({k}, dtype), y = random({m}, dtype);
      for (const Layout left : kLayouts) {
        check(
            "mv", [](const Tensors& t) { return torch::mv(t[0], t[1]); }, {left(a), x}, k);
        check(
            "mv of steps", [](const Tensors& t) { return torch::mv(t[0], t[1]); },
            {left(a), stepped(x)}, k);
        check(
            "addmv", [](const Tensors& t) { return torch::addmv(t[0], t[1], t[2], 0.5, 2); },
            {stepped(y), left(a), x}, k);
        check(
            "addmv_", [](const Tensors& t) { return t[0].clone().addmv_(t[1], t[2], 0.5, 2); },
            {y, left(a), x}, k);
        check(
            "addmv.out",
            [](const Tensors& t) {
              Tensor out = torch::empty_like(t[0]);
              return torch::addmv_out(out, t[0], t[1], t[2], 0.5, 2);
            },
            {y, left(a), x}, k);
      }
    }
  }
}

TEST_F(OwnProducts, OfNothing) {
  for (const at::ScalarType dtype : kDtypes) {
    for (const auto& [m, k, n] :
         std::vector<std::array<int64_t, 3>>{{0, 4, 3}, {4, 3, 0}, {4, 0, 3}, {0, 0, 0}}) {
      const Tensor a = random({m, k}, dtype), b = random({k, n}, dtype);
      const Tensor a3 = random({2, m, k}, dtype), b3 = random({2, k, n}, dtype);
      check("mm", mm, {a, b}, k);
      check("bmm", bmm, {a3, b3}, k);
      check("addmm", addmm, {random({m, n}, dtype), a, b}, k);
      check("addmm", addmm, {random({n}, dtype), a, b}, k);
      check("baddbmm", baddbmm, {random({2, m, n}, dtype), a3, b3}, k);
      check(
          "addmv", [](const Tensors& t) { return torch::addmv(t[0], t[1], t[2], 0.5, 2); },
          {random({m}, dtype), a, random({k}, dtype)}, k);
    }
    check("no batch", bmm, {random({0, 3, 4}, dtype), random({0, 4, 5}, dtype)}, 4);
  }
}

TEST_F(OwnProducts, OfExpandedTensors) {
  for (const at::ScalarType dtype : kDtypes) {
    const Tensor row = random({1, 40}, dtype), column = random({33, 1}, dtype);
    check("rows", mm, {row.expand({33, 40}), column.expand({33, 40}).t()}, 40);
    check("columns", mm, {column.expand({33, 40}), row.expand({33, 40}).t()}, 40);
    check("batch", bmm,
          {random({1, 9, 20}, dtype).expand({4, 9, 20}), random({20, 1}, dtype).expand({4, 20, 7})},
          20);
    check("one number", mm, {random({1, 1}, dtype).expand({5, 6}), random({6, 20}, dtype)}, 6);
  }
}

TEST_F(OwnProducts, WriteInPlace) {
  for (const at::ScalarType dtype : kDtypes) {
    for (const int64_t n : {1, 5, 33, 70}) {
      for (const Layout layout : kLayouts) {
        const Tensor a = random({20, 30}, dtype), b = random({30, n}, dtype);
        const Tensor a3 = random({3, 20, 30}, dtype), b3 = random({3, 30, n}, dtype);
        check(
            "addmm_",
            [layout](const Tensors& t) {
              return layout(t[0].clone()).addmm_(t[1], t[2], 0.5, 2).contiguous();
            },
            {random({20, n}, dtype), a, b}, 30);
        check(
            "baddbmm_",
            [layout](const Tensors& t) {
              return layout(t[0].clone()).baddbmm_(t[1], t[2], 0.5, 2).contiguous();
            },
            {random({3, 20, n}, dtype), a3, b3}, 30);
      }
    }
    // Where LibTorch refuses, it refuses still.
    Tensor twice = random({1, 5}, dtype).expand({5, 5});
    EXPECT_THROW(twice.addmm_(random({5, 3}, dtype), random({3, 5}, dtype)), c10::Error);
    clear_choices();
  }
}

// Whether the same elements are NaN, +inf and -inf.
bool same_specials(const Tensor& x, const Tensor& y) {
  const auto same = [](const Tensor& p, const Tensor& q) { return torch::equal(p, q); };
  return same(x.isnan(), y.isnan()) && same(x.isposinf(), y.isposinf()) &&
         same(x.isneginf(), y.isneginf());
}

TEST_F(OwnProducts, CarryNanAndInfinityAsFloat32Does) {
  for (const at::ScalarType dtype : kDtypes) {
    for (const auto& [m, n] : std::vector<std::pair<int64_t, int64_t>>{{1, 20}, {9, 37}, {37, 1}}) {
      for (const double special : {kNan, kInf, -kInf}) {
        for (int place = 0; place < 3; ++place) {
          for (const double beta : {0.0, 1.0}) {
            Tensors inputs = {random({m, n}, dtype), random({m, 18}, dtype),
                              random({18, n}, dtype)};
            inputs[static_cast<size_t>(place)][0][0] = special;
            inputs[1][m - 1][17] = 0;  // 0 * inf is NaN
            if (place == 2) inputs[2][17][n - 1] = special;
            const Function function = [beta = beta](const Tensors& t) {
              return torch::addmm(t[0], t[1], t[2], beta, 1);
            };
            const Tensor result = function(inputs);
            const Tensor single = function(to(inputs, torch::kFloat));
            EXPECT_TRUE(same_specials(result, single))
                << dtype << " " << m << " " << special << " " << place << " " << beta << "\n"
                << result << "\n"
                << single;
            if (place == 0 && beta == 0.0) {
              EXPECT_TRUE(result.isfinite().all().item<bool>());
            }
          }
        }
      }
    }
    // Sums beyond the largest number of the dtype, and float32 sums that reach it and come back.
    const double large = dtype == torch::kHalf ? 60000.0 : 3e38;
    const Tensor a = torch::tensor({{large, large, 0.0}, {large, -large, 1.0}}).to(dtype);
    const Tensor b = torch::ones({3, 4}).to(dtype);
    const Tensor result = torch::mm(a, b);
    EXPECT_TRUE(result[0].isposinf().all().item<bool>()) << result;
    EXPECT_TRUE((result[1] == 1).all().item<bool>()) << result;
  }
}

TEST_F(OwnProducts, HaveGradientsOfGradients) {
  for (const at::ScalarType dtype : kDtypes) {
    const auto second = [&](at::ScalarType as) {
      torch::manual_seed(3);
      const Tensor bias = random({6}, dtype).to(as).requires_grad_();
      const Tensor a = random({7, 5}, dtype).to(as).requires_grad_();
      const Tensor b = random({6, 5}, dtype).to(as).requires_grad_();
      const Tensor out = torch::linear(a, b, bias);
      const Tensors grads = torch::autograd::grad({out.pow(2).sum()}, {a, b, bias}, {},
                                                  /*retain_graph=*/true, /*create_graph=*/true);
      const Tensor sum = grads[0].pow(2).sum() + grads[1].pow(2).sum() + grads[2].pow(2).sum();
      Tensors all = torch::autograd::grad({sum}, {a, b, bias});
      all.insert(all.end(), grads.begin(), grads.end());
      return all;
    };
    const Tensors narrow = second(dtype), exact = second(torch::kDouble);
    for (size_t i = 0; i < narrow.size(); ++i) {
      // Some ten roundings of a part in 2^9 (2^12) one after another, each of sums of a few terms.
      const double tolerance = dtype == torch::kHalf ? 0.01 : 0.08;
      EXPECT_LE((narrow[i].detach().to(torch::kDouble) - exact[i].detach()).norm().item<double>(),
                tolerance * exact[i].norm().item<double>())
          << dtype << " " << i;
    }
  }
}

TEST_F(OwnProducts, GoToLibTorchWhereTheyMust) {
  const Tensor a = random({6, 5}, torch::kBFloat16), b = random({5, 7}, torch::kBFloat16);
  const auto is_taken = [&] { return detail::takes_product(torch::kBFloat16, a, b); };
  EXPECT_TRUE(is_taken());
  {
    const NoChoices off;  // Python's bits are asked for
    EXPECT_FALSE(is_taken());
    EXPECT_TRUE(detail::takes_product(torch::kHalf, a.to(torch::kHalf), b.to(torch::kHalf)));
  }
  kernels::use_cpu_table(*tables_here().front());
  EXPECT_FALSE(is_taken());
}

TEST_F(OwnProducts, WithChoicesOffBfloat16IsLibTorchs) {
  const NoChoices off;
  const Tensor a = random({33, 300}, torch::kBFloat16), b = random({300, 65}, torch::kBFloat16);
  const Tensor c = random({65}, torch::kBFloat16);
  const auto all = [&] {
    return Tensors{torch::mm(a, b), torch::addmm(c, a, b), torch::mm(a.narrow(0, 0, 1), b),
                   torch::mv(b, c)};
  };
  const Tensors ours = all();
  uninstall();
  const Tensors theirs = all();
  for (size_t i = 0; i < ours.size(); ++i) EXPECT_TRUE(torch::equal(ours[i], theirs[i])) << i;
}

}  // namespace
}  // namespace torchamp::ops
