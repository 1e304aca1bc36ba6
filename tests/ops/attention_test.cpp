// bfloat16 attention on CPU, judged by float64 softmax(q k^T scale) v and its derivatives.

#include "torchamp/kernels/cpu/attention.h"

#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "torchamp/ops/choices.h"
#include "torchamp/ops/install.h"

namespace torchamp::testing {
namespace {

using torch::Tensor;

struct Shape {
  int64_t batch, heads, queries, keys, head_size;
  bool is_causal = false;
  std::optional<double> scale = std::nullopt;
  Tensor mask = {};
};

std::string text_of(const Shape& s) {
  return std::to_string(s.batch) + "x" + std::to_string(s.heads) + "x" + std::to_string(s.queries) +
         "x" + std::to_string(s.keys) + "x" + std::to_string(s.head_size) +
         (s.is_causal ? " causal" : "");
}

// Heads side by side in a row, as a linear layer leaves them.
Tensor rows(int64_t batch, int64_t heads, int64_t count, int64_t size) {
  return torch::randn({batch, count, heads * size})
      .to(torch::kBFloat16)
      .view({batch, count, heads, size})
      .transpose(1, 2);
}

struct Result {
  Tensor output, logsumexp;
  std::vector<Tensor> grads;
};

// What the formula says, in float64.
Result exact(const std::vector<Tensor>& inputs, const Tensor& grad, const Shape& shape) {
  std::vector<Tensor> x;
  for (const Tensor& input : inputs) x.push_back(input.to(torch::kDouble).requires_grad_());
  const double scale = shape.scale.value_or(1 / std::sqrt(static_cast<double>(shape.head_size)));
  Tensor scores = torch::matmul(x[0], x[1].transpose(-2, -1)) * scale;
  if (shape.is_causal) {
    const Tensor sees = torch::ones({shape.queries, shape.keys}, torch::kBool).tril();
    scores = scores.masked_fill(~sees, -std::numeric_limits<double>::infinity());
  }
  if (shape.mask.defined()) scores = scores + shape.mask.to(torch::kDouble);
  Result result;
  const Tensor output = torch::matmul(torch::softmax(scores, -1), x[2]);
  result.grads = torch::autograd::grad({output}, x, {grad.to(torch::kDouble)});
  result.output = output.detach();
  result.logsumexp = torch::logsumexp(scores, -1).detach();
  return result;
}

std::optional<Tensor> mask_of(const Shape& shape) {
  return shape.mask.defined() ? std::optional(shape.mask) : std::nullopt;
}

// What the ops on the dispatcher return now.
Result computed(const std::vector<Tensor>& x, const Tensor& grad, const Shape& shape) {
  Result result;
  std::tie(result.output, result.logsumexp) = at::_scaled_dot_product_flash_attention_for_cpu(
      x[0], x[1], x[2], 0.0, shape.is_causal, mask_of(shape), shape.scale);
  const auto [q, k, v] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      grad, x[0], x[1], x[2], result.output, result.logsumexp, 0.0, shape.is_causal, mask_of(shape),
      shape.scale);
  result.grads = {q, k, v};
  return result;
}

double error(const Tensor& x, const Tensor& y) {
  return (x.to(torch::kDouble) - y).abs().max().item<double>();
}
double spacing_at_most(const Tensor& y) {  // of bfloat16 numbers as large as y
  return std::ldexp(y.abs().max().item<double>(), -8);
}

void expect_same_layout(const Tensor& ours, const Tensor& theirs, const std::string& what) {
  EXPECT_EQ(ours.sizes(), theirs.sizes()) << what;
  EXPECT_EQ(ours.strides(), theirs.strides()) << what;
  EXPECT_EQ(ours.scalar_type(), theirs.scalar_type()) << what;
}

// About as exact as LibTorch's kernel. What it adds to 1.5 times its error: a rounding, since the
// largest error of few numbers is a matter of luck, and what float32 sums of numbers near 1 leave
// where the truth cancels to 0.
void expect_as_exact(const Tensor& ours, const Tensor& theirs, const Tensor& truth,
                     const std::string& what) {
  expect_same_layout(ours, theirs, what);
  EXPECT_LE(error(ours, truth), 1.5 * error(theirs, truth) + spacing_at_most(truth) + 4e-6) << what;
}

void check(const Shape& shape) {
  const std::string what = text_of(shape);
  const std::vector<Tensor> inputs = {
      rows(shape.batch, shape.heads, shape.queries, shape.head_size),
      rows(shape.batch, shape.heads, shape.keys, shape.head_size),
      rows(shape.batch, shape.heads, shape.keys, shape.head_size)};
  const Tensor grad = rows(shape.batch, shape.heads, shape.queries, shape.head_size);
  const Result truth = exact(inputs, grad, shape);
  const Result theirs = computed(inputs, grad, shape);
  const ops::Installation installation;
  const Result ours = computed(inputs, grad, shape);
  expect_as_exact(ours.output, theirs.output, truth.output, what);
  expect_same_layout(ours.logsumexp, theirs.logsumexp, what);
  EXPECT_LE(error(ours.logsumexp, truth.logsumexp), 2e-5) << what;
  for (size_t i = 0; i < 3; ++i) {
    expect_as_exact(ours.grads[i], theirs.grads[i], truth.grads[i],
                    what + ", gradient " + std::to_string(i));
  }
}

class Attention : public ::testing::Test {
 protected:
  void SetUp() override {
    if (kernels::attention_kernels() == nullptr) GTEST_SKIP() << "this CPU has no avx512_bf16";
    torch::manual_seed(5);
  }
};

TEST_F(Attention, IsAsExactAsLibTorchsForAllKindsOfShape) {
  for (const bool is_causal : {false, true}) {
    for (const int64_t head_size : {16, 64, 80}) {
      for (const int64_t length : {1, 2, 15, 16, 59, 60, 61, 127, 128, 129, 256, 257}) {
        check({1, 2, length, length, head_size, is_causal});
      }
    }
    check({2, 1, 61, 61, 256, is_causal});
  }
}

TEST_F(Attention, TakesKeysOfAnotherNumberThanQueries) {
  for (const bool is_causal : {false, true}) {
    check({1, 2, 7, 300, 32, is_causal});
    check({1, 2, 300, 7, 32, is_causal});
    check({1, 2, 130, 259, 32, is_causal});
    check({1, 2, 1, 513, 32, is_causal});
  }
}

TEST_F(Attention, TakesAScale) {
  check({1, 3, 65, 65, 32, false, 0.5});
  check({1, 3, 65, 65, 32, true, 2.0});
  check({1, 3, 65, 65, 32, false, -0.1});
}

Tensor some_hidden(at::IntArrayRef sizes) {  // the first key is seen by all
  Tensor hidden = torch::rand(sizes) < 0.3;
  hidden.select(-1, 0).fill_(false);
  return torch::randn(sizes).masked_fill(hidden, -std::numeric_limits<double>::infinity());
}

TEST_F(Attention, TakesMasksThatAreBroadcast) {
  for (const torch::ScalarType dtype : {torch::kFloat, torch::kBFloat16}) {
    for (const std::vector<int64_t>& sizes : std::vector<std::vector<int64_t>>{
             {70, 300}, {2, 3, 70, 300}, {2, 1, 1, 300}, {1, 3, 70, 300}, {1, 1, 70, 1}}) {
      check({2, 3, 70, 300, 32, false, {}, some_hidden(sizes).to(dtype)});
    }
  }
}

TEST_F(Attention, AQueryThatSeesNoKeyHasNoOutputAndNoGradient) {
  Shape shape{1, 2, 65, 300, 32};
  shape.mask = torch::zeros({65, 300});
  shape.mask[3].fill_(-std::numeric_limits<double>::infinity());
  const std::vector<Tensor> x = {rows(1, 2, 65, 32), rows(1, 2, 300, 32), rows(1, 2, 300, 32)};
  const Tensor grad = rows(1, 2, 65, 32);
  const Result theirs = computed(x, grad, shape);
  const ops::Installation installation;
  const Result ours = computed(x, grad, shape);
  EXPECT_TRUE(ours.output.select(2, 3).eq(0).all().item<bool>());
  EXPECT_TRUE(ours.grads[0].select(2, 3).eq(0).all().item<bool>());
  EXPECT_LE(error(ours.output, theirs.output.to(torch::kDouble)), 0.01);
  EXPECT_LE(error(ours.logsumexp, theirs.logsumexp.to(torch::kDouble)), 2e-5);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_LE(error(ours.grads[i], theirs.grads[i].to(torch::kDouble)), 0.05) << i;
  }
}

TEST_F(Attention, ForwardAndBackwardMayComeFromDifferentKernels) {
  const Shape shape{1, 2, 90, 90, 32, true};
  const std::vector<Tensor> x = {rows(1, 2, 90, 32), rows(1, 2, 90, 32), rows(1, 2, 90, 32)};
  const Tensor grad = rows(1, 2, 90, 32);
  const Result truth = exact(x, grad, shape);
  for (const bool ours_first : {false, true}) {
    std::optional<ops::Installation> installation;
    if (ours_first) installation.emplace();
    const auto [out, logsumexp] =
        at::_scaled_dot_product_flash_attention_for_cpu(x[0], x[1], x[2], 0.0, true, {}, {});
    if (ours_first) {
      installation.reset();
    } else {
      installation.emplace();
    }
    const auto [q, k, v] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        grad, x[0], x[1], x[2], out, logsumexp, 0.0, true, {}, {});
    EXPECT_LE(error(q, truth.grads[0]), 3 * spacing_at_most(truth.grads[0]));
    EXPECT_LE(error(k, truth.grads[1]), 3 * spacing_at_most(truth.grads[1]));
    EXPECT_LE(error(v, truth.grads[2]), 3 * spacing_at_most(truth.grads[2]));
  }
}

double root_mean_square(const Tensor& x, const Tensor& y) {
  return (x.to(torch::kDouble) - y).square().mean().sqrt().item<double>();
}

TEST_F(Attention, LongSequencesErrNoMoreThanInLibTorchs) {
  for (const bool is_causal : {false, true}) {
    const Shape shape{1, 2, 700, 900, 64, is_causal};
    const std::vector<Tensor> x = {rows(1, 2, 700, 64), rows(1, 2, 900, 64), rows(1, 2, 900, 64)};
    const Tensor grad = rows(1, 2, 700, 64);
    const Result truth = exact(x, grad, shape), theirs = computed(x, grad, shape);
    const ops::Installation installation;
    const Result ours = computed(x, grad, shape);
    EXPECT_LE(root_mean_square(ours.output, truth.output),
              1.02 * root_mean_square(theirs.output, truth.output));
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_LE(root_mean_square(ours.grads[i], truth.grads[i]),
                1.02 * root_mean_square(theirs.grads[i], truth.grads[i]))
          << i;
    }
  }
}

TEST_F(Attention, LargeScoresNeitherOverflowNorVanish) {
  const Shape shape{1, 2, 70, 70, 32};
  const std::vector<Tensor> x = {rows(1, 2, 70, 32) * 30, rows(1, 2, 70, 32) * 30,
                                 rows(1, 2, 70, 32)};
  const Tensor grad = rows(1, 2, 70, 32);
  const Result truth = exact(x, grad, shape), theirs = computed(x, grad, shape);
  const ops::Installation installation;
  const Result ours = computed(x, grad, shape);
  expect_as_exact(ours.output, theirs.output, truth.output, "output");
  for (size_t i = 0; i < 3; ++i) {
    expect_as_exact(ours.grads[i], theirs.grads[i], truth.grads[i], std::to_string(i));
  }
}

TEST_F(Attention, NonFiniteNumbersReachTheRowsThatTheFormulaSays) {
  for (const double value : {std::nan(""), std::numeric_limits<double>::infinity()}) {
    for (const size_t at : {0, 1, 2}) {
      const Shape shape{1, 2, 66, 66, 16, true};
      std::vector<Tensor> x = {rows(1, 2, 66, 16), rows(1, 2, 66, 16), rows(1, 2, 66, 16)};
      x[at].index_put_({0, 1, 40, 3}, value);
      const Tensor grad = rows(1, 2, 66, 16);
      const Tensor truth = exact(x, grad, shape).output;
      const ops::Installation installation;
      const Result ours = computed(x, grad, shape);
      EXPECT_TRUE(ours.output.isfinite().equal(truth.isfinite())) << at << " " << value;
      EXPECT_FALSE(ours.output.isfinite().all().item<bool>());
      EXPECT_FALSE(ours.grads[at == 0 ? 1 : 0].isfinite().all().item<bool>()) << at << " " << value;
    }
  }
}

TEST_F(Attention, ReadsAnyStridesOfRows) {
  const Shape shape{2, 3, 37, 37, 16, true};
  const Tensor all = torch::randn({2, 37, 3, 3, 16}).to(torch::kBFloat16);  // q, k, v in one row
  const std::vector<Tensor> parts = {all.select(2, 0).transpose(1, 2),
                                     all.select(2, 1).transpose(1, 2),
                                     all.select(2, 2).transpose(1, 2)};
  const Tensor odd = torch::randn({2, 3, 37, 17}).to(torch::kBFloat16).narrow(3, 1, 16);
  const ops::Installation installation;
  const Result strided = computed(parts, odd, shape);
  const Result plain =
      computed({parts[0].contiguous(), parts[1].contiguous(), parts[2].contiguous()},
               odd.contiguous(), shape);
  EXPECT_TRUE(strided.output.equal(plain.output));
  for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(strided.grads[i].equal(plain.grads[i])) << i;
  // A gradient of one number for all, as sum() gives it.
  const Tensor one = torch::ones({}, torch::kBFloat16).expand({2, 3, 37, 16});
  const Result expanded = computed(parts, one, shape),
               full = computed(parts, one.contiguous(), shape);
  for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(expanded.grads[i].equal(full.grads[i])) << i;
}

TEST_F(Attention, ThreadsDoNotChangeTheBits) {
  const Shape shape{2, 3, 100, 100, 32, true};
  const std::vector<Tensor> x = {rows(2, 3, 100, 32), rows(2, 3, 100, 32), rows(2, 3, 100, 32)};
  const Tensor grad = rows(2, 3, 100, 32);
  const ops::Installation installation;
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const Result alone = computed(x, grad, shape);
  at::set_num_threads(2);
  const Result both = computed(x, grad, shape);
  at::set_num_threads(threads);
  EXPECT_TRUE(alone.output.equal(both.output));
  for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(alone.grads[i].equal(both.grads[i])) << i;
}

TEST_F(Attention, LeavesWhatItDoesNotTakeToLibTorch) {
  const ops::NoChoices not_to_float32;
  const Tensor odd = rows(1, 2, 10, 20), x = rows(1, 2, 10, 16);
  const Tensor mask = torch::randn({10, 20}).to(torch::kBFloat16).slice(1, 0, 20, 2);
  const auto attention = [](const Tensor& q, const std::optional<Tensor>& mask) {
    return std::get<0>(
        at::_scaled_dot_product_flash_attention_for_cpu(q, q, q, 0.0, false, mask, {}));
  };
  const Tensor of_odd = attention(odd, {}), of_mask = attention(x, mask);
  const Tensor of_float = attention(x.to(torch::kFloat), {});
  const ops::Installation installation;
  EXPECT_TRUE(attention(odd, {}).equal(of_odd));
  EXPECT_TRUE(attention(x, mask).equal(of_mask));
  EXPECT_TRUE(attention(x.to(torch::kFloat), {}).equal(of_float));
}

TEST_F(Attention, RunsUnderAutogradAsUsersCallIt) {
  const ops::Installation installation;
  Tensor q = rows(2, 2, 50, 32).detach().requires_grad_();
  const Tensor out = at::scaled_dot_product_attention(q, q, q, {}, 0.0, /*is_causal=*/true);
  out.sum().backward();
  const Tensor double_q = q.detach().to(torch::kDouble).requires_grad_();
  at::scaled_dot_product_attention(double_q, double_q, double_q, {}, 0.0, true).sum().backward();
  EXPECT_LE(error(q.grad(), double_q.grad()), 4 * spacing_at_most(double_q.grad()));
}

}  // namespace
}  // namespace torchamp::testing
