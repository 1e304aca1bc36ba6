// float16 ops by kernels that read float16 as it lies in memory: losses, group norm, sums of rows,
// and what picks a few numbers.

#include <cmath>
#include <cstdlib>
#include <limits>
#include <optional>
#include <string>

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "ops/half_check.h"
#include "torchamp/kernels/cpu/table.h"
#include "torchamp/ops/install.h"

namespace torchamp::testing {
namespace {

using torch::Tensor;

constexpr double kHalfRounding = 0x1p-11;
constexpr double kInf = std::numeric_limits<double>::infinity();

class HalfStorage : public ::testing::Test {
 protected:
  HalfStorage() {
    setenv("TORCHAMP_OPS", "all", 1);
    installation_.emplace();
    torch::manual_seed(12);
  }
  ~HalfStorage() override {
    unsetenv("TORCHAMP_OPS");
    at::set_num_threads(2);
  }
  std::optional<ops::Installation> installation_;
};

// The results of `work` by every table that runs here and by one and three threads: the same bits.
template <class Work>
Tensor the_same_everywhere(const Work& work) {
  const kernels::KernelTable& in_use = kernels::cpu_table();
  at::set_num_threads(1);
  const Tensor first = work();
  for (const kernels::KernelTable* table : kernels::cpu_tables()) {
    if (!table->runs_here()) continue;
    kernels::use_cpu_table(*table);
    for (const int threads : {1, 3}) {
      at::set_num_threads(threads);
      EXPECT_TRUE(torch::equal(work().view(torch::kShort), first.view(torch::kShort)))
          << table->name << ", " << threads << " threads";
    }
  }
  kernels::use_cpu_table(in_use);
  at::set_num_threads(2);
  return first;
}

std::vector<Tensor> pair_of(at::IntArrayRef sizes) { return {half(sizes), half(sizes)}; }

TEST_F(HalfStorage, SmoothL1AndHuberRoundOnce) {
  for (const auto reduction : {at::Reduction::None, at::Reduction::Mean, at::Reduction::Sum}) {
    for (const auto& inputs : {pair_of({1}), pair_of({15}), pair_of({33, 31}), pair_of({300, 701}),
                               Tensors{transposed(half({30, 40})), transposed(half({30, 40}))},
                               Tensors{transposed(half({30, 40})), half({30, 40})},
                               Tensors{sliced(half({30, 40})), half({30, 40})}, pair_of({0, 4})}) {
      for (const double beta : {0.7, 1.0}) {
        const std::string what = c10::str(inputs[0].sizes(), ", reduction ", reduction);
        // An empty mean is nan.
        if (inputs[0].numel() == 0 && reduction == at::Reduction::Mean) continue;
        // More than float16 holds.
        if (inputs[0].numel() > 100000 && reduction == at::Reduction::Sum) continue;
        check_op(
            "smooth_l1_loss of " + what,
            [=](const Tensors& x) { return torch::smooth_l1_loss(x[0], x[1], reduction, beta); },
            inputs);
        check_op(
            "huber_loss of " + what,
            [=](const Tensors& x) { return torch::huber_loss(x[0], x[1], reduction, beta); },
            inputs);
      }
    }
  }
  check_op(
      "smooth_l1_loss of broadcast numbers",
      [=](const Tensors& x) {
        return torch::smooth_l1_loss(x[0], x[1].expand({30, 40}));
      },
      {half({30, 40}), half({40})}, 0, kHalfRounding);
  check_op(
      "l1",
      [=](const Tensors& x) { return torch::smooth_l1_loss(x[0], x[1], at::Reduction::None, 0.0); },
      pair_of({30, 40}));
}

TEST_F(HalfStorage, SmoothL1OfInfinityAndNan) {
  for (const double special : {kInf, -kInf, std::nan("")}) {
    for (const int64_t place : {0, 17, 36}) {
      Tensor x = half({37});
      const Tensor y = half({37});
      x[place] = special;
      x.requires_grad_();
      const Tensor loss = torch::smooth_l1_loss(x, y, at::Reduction::None, 0.5);
      loss.sum().backward();
      const double at = loss[place].item<double>(), slope = x.grad()[place].item<double>();
      EXPECT_TRUE(std::isnan(special) ? std::isnan(at) : at == kInf);
      EXPECT_TRUE(std::isnan(special) ? std::isnan(slope) : slope == std::copysign(1, special));
      EXPECT_EQ(loss.isfinite().sum().item<int64_t>(), 36);
      EXPECT_FALSE(std::isfinite(torch::smooth_l1_loss(x.detach(), y).item<double>()));
    }
  }
}

TEST_F(HalfStorage, LossesHaveTheSameBitsByEveryTableAndNumberOfThreads) {
  const Tensor x = half({500, 401}), y = half({500, 401}), grad = half({500, 401});
  the_same_everywhere([&] { return torch::smooth_l1_loss(x, y); });
  the_same_everywhere([&] { return torch::huber_loss(x, y, at::Reduction::None, 0.3); });
  the_same_everywhere(
      [&] { return torch::huber_loss_backward(grad, x, y, at::Reduction::None, 0.3); });
}

TEST_F(HalfStorage, GroupNormRoundsOnce) {
  struct Shape {
    std::vector<int64_t> sizes;
    int64_t groups;
  };
  for (const Shape& shape : {Shape{{3, 8, 6, 5}, 4}, Shape{{1, 6, 1, 1}, 2}, Shape{{2, 4, 50}, 1},
                             Shape{{2, 6, 33, 37}, 6}, Shape{{4, 12}, 3}}) {
    const int64_t C = shape.sizes[1];
    const Tensor x = half(shape.sizes) + 1;
    // Mean and deviation reach the backward pass through float16, as LibTorch has it.
    check_op(
        c10::str("group_norm of ", shape.sizes),
        [&](const Tensors& t) { return torch::group_norm(t[0], shape.groups, t[1], t[2]); },
        {x, half({C}), half({C})}, 0, 16 * kHalfRounding);
    check_op(
        c10::str("group_norm without parameters of ", shape.sizes),
        [&](const Tensors& t) { return torch::group_norm(t[0], shape.groups); }, {x}, 0,
        16 * kHalfRounding);
  }
  const auto norm = [](const Tensors& t) { return torch::group_norm(t[0], 2, t[1], t[2]); };
  check_op("group_norm channels_last", norm,
           {channels_last(half({3, 8, 6, 5})), half({8}), half({8})}, 0, 8 * kHalfRounding);
  check_op("group_norm of a slice", norm, {sliced(half({3, 8, 6, 5})), half({8}), half({8})}, 0,
           8 * kHalfRounding);
  EXPECT_EQ(torch::group_norm(half({0, 4, 3}), 2).sizes(), (std::vector<int64_t>{0, 4, 3}));
  Tensor with_nan = half({2, 4, 3});
  with_nan[1][3][2] = std::nan("");
  const Tensor y = torch::group_norm(with_nan, 2);
  EXPECT_EQ(y.isnan().sum().item<int64_t>(), 6);
  EXPECT_TRUE(y[1].narrow(0, 2, 2).isnan().all().item<bool>());
}

TEST_F(HalfStorage, GroupNormTakesFloat32ParametersAndKeepsLibTorchsDtypes) {
  const Tensor x = half({3, 8, 6, 5}), grad = half({3, 8, 6, 5}), weight = torch::randn({8}),
               bias = torch::randn({8});
  for (const auto dtype : {torch::kHalf, torch::kFloat}) {
    const Tensor w = weight.to(dtype), b = bias.to(dtype);
    const auto run = [&] {
      const auto [y, mean, rstd] = torch::native_group_norm(x, w, b, 3, 8, 30, 4, 1e-5);
      const auto [grad_x, grad_w, grad_b] = torch::native_group_norm_backward(
          grad, x, mean, rstd, w, 3, 8, 30, 4, {true, true, true});
      return Tensors{y, mean, rstd, grad_x, grad_w, grad_b};
    };
    const Tensors ours = run();
    installation_.reset();
    const Tensors theirs = run();
    installation_.emplace();
    for (size_t i = 0; i < ours.size(); ++i) {
      EXPECT_EQ(ours[i].scalar_type(), theirs[i].scalar_type()) << i;
      EXPECT_EQ(ours[i].sizes(), theirs[i].sizes()) << i;
      EXPECT_EQ(ours[i].strides(), theirs[i].strides()) << i;
      EXPECT_TRUE(
          torch::allclose(ours[i].to(torch::kFloat), theirs[i].to(torch::kFloat), 0.02, 0.02))
          << i;
    }
  }
}

TEST_F(HalfStorage, GroupNormHasTheSameBitsByEveryTableAndNumberOfThreads) {
  const Tensor x = half({4, 6, 33, 37}), grad = half({4, 6, 33, 37}), w = half({6});
  the_same_everywhere([&] { return torch::group_norm(x, 3, w); });
  const auto [y, mean, rstd] = torch::native_group_norm(x, w, {}, 4, 6, 33 * 37, 3, 1e-5);
  for (const bool of_weight : {false, true}) {
    the_same_everywhere([&, mean = mean, rstd = rstd] {
      const auto grads = torch::native_group_norm_backward(grad, x, mean, rstd, w, 4, 6, 33 * 37, 3,
                                                           {true, true, false});
      return of_weight ? std::get<1>(grads) : std::get<0>(grads);
    });
  }
}

TEST_F(HalfStorage, SumsOverOneDimensionRoundOnce) {
  struct Shape {
    std::vector<int64_t> sizes;
    int64_t dim;
  };
  for (const Shape& shape : {Shape{{64, 2, 512}, 1}, Shape{{64, 2, 512}, -2}, Shape{{3, 5000}, 0},
                             Shape{{256, 100}, 0}, Shape{{257, 100}, 0}, Shape{{20, 30, 17, 3}, 1},
                             Shape{{900, 20}, 1}, Shape{{2, 3, 4}, 1}}) {
    for (const bool keeps : {false, true}) {
      const auto sum = [&](const Tensors& x) { return x[0].sum(shape.dim, keeps); };
      const std::string what = c10::str("sum of ", shape.sizes, " over ", shape.dim);
      check_op(what, sum, {half(shape.sizes)});
      check_op(what + ", sliced", sum, {sliced(half(shape.sizes))});
    }
  }
  Tensor x = half({64, 2, 512});
  EXPECT_EQ(x.sum(1, false, torch::kFloat).scalar_type(), torch::kFloat);
  EXPECT_EQ(x.sum(at::IntArrayRef({0, 1})).sizes(), (std::vector<int64_t>{512}));
  the_same_everywhere([&] { return x.sum(1); });
  x[5][1][9] = kInf;
  x[5][1][10] = std::nan("");
  const Tensor y = x.sum(1);
  EXPECT_EQ(y[5][9].item<double>(), kInf);
  EXPECT_TRUE(y[5][10].isnan().item<bool>());
  EXPECT_EQ(y.isfinite().sum().item<int64_t>(), y.numel() - 2);
  check_op("repeat_interleave",
           [](const Tensors& t) { return torch::repeat_interleave(t[0], 2, 0); },
           {half({300, 100})});
}

TEST_F(HalfStorage, RowsAreAddedInFloat32AtAnIndex) {
  const auto check = [](int64_t rows, int64_t count, int64_t columns, torch::ScalarType dtype,
                        double alpha) {
    const Tensor index = torch::randint(0, rows, {count}).to(dtype);
    check_op(
        c10::str("index_add of ", count, "x", columns, " to ", rows),
        [&](const Tensors& x) { return torch::index_add(x[0], 0, index, x[1], alpha); },
        {half({rows, columns}), half({count, columns})}, 0, kHalfRounding);
    check_op(
        c10::str("index_add_ of ", count, "x", columns, " to ", rows),
        [&](const Tensors& x) {
          Tensor y = x[0].clone();
          y.index_add_(-2, index, x[1], alpha);
          return y;
        },
        {half({rows, columns}), half({count, columns})}, 0, kHalfRounding);
    if (alpha != 1) return;
    check_op(c10::str("index_select of ", count, " of ", rows, "x", columns),
             [&](const Tensors& x) { return torch::index_select(x[0], 0, index); },
             {half({rows, columns})});
  };
  check(512, 512, 64, torch::kLong, 1);
  check(40, 600, 70, torch::kInt, 0.5);
  check(3, 500, 40, torch::kLong, -2);      // many to a row
  check(100000, 40, 512, torch::kLong, 1);  // few of many
  check(6, 10, 5000, torch::kLong, 1);      // more than a block
  check(50, 60, 3, torch::kLong, 1);        // short rows, LibTorch's
  const Tensor x = half({50, 4, 100}), index = torch::randint(0, 50, {60});
  const Tensor source = half({60, 4, 100});
  the_same_everywhere([&] { return torch::index_add(x, 0, index, source); });
}

// What we do not take is LibTorch's, its errors too.
TEST_F(HalfStorage, RowsAtAWrongIndexGetLibTorchsError) {
  const auto error = [&](const Tensor& index) -> std::string {
    Tensor x = torch::zeros({50, 400}, torch::kHalf);
    try {
      x.index_add_(0, index, torch::ones({60, 400}, torch::kHalf));
    } catch (const c10::Error& e) {
      return e.what_without_backtrace();
    }
    return "";
  };
  for (const int64_t wrong : {-1, 50}) {
    const Tensor index = torch::full({60}, wrong, torch::kLong);
    const std::string ours = error(index);
    installation_.reset();
    EXPECT_EQ(ours, error(index));
    EXPECT_NE(ours, "");
    installation_.emplace();
  }
  Tensor self = half({200, 100});
  const Tensor index = torch::arange(200);
  const Tensor twice = self + self;
  self.index_add_(0, index, self.clone());
  EXPECT_TRUE(torch::equal(self, twice));
}

TEST_F(HalfStorage, AddrRoundsOnce) {
  for (const auto& [rows, columns] : {std::pair(1, 1), std::pair(9, 4), std::pair(33, 65),
                                      std::pair(300, 512), std::pair(0, 7)}) {
    for (const double beta : {1.0, 0.0, 0.3}) {
      check_op(
          c10::str("addr ", rows, "x", columns),
          [=](const Tensors& x) { return torch::addr(x[0], x[1], x[2], beta, 1.7); },
          {half({rows, columns}), half({rows}), half({columns})}, 0, kHalfRounding);
    }
  }
  check_op("addr of a row", [](const Tensors& x) { return torch::addr(x[0], x[1], x[2]); },
           {half({40}), half({30}), half({40})});
  const Tensor nan = torch::full({4, 20}, std::nan(""), torch::kHalf), ones = torch::ones({20});
  EXPECT_TRUE(torch::addr(nan, half({4}), half({20}), 0).isfinite().all().item<bool>());
  EXPECT_TRUE(torch::addr(nan, half({4}), half({20})).isnan().all().item<bool>());
}

TEST_F(HalfStorage, LossesOfPixelLabelsRoundOnce) {
  const Tensor labels = torch::randint(0, 5, {3, 7, 9});
  labels[0].select(1, 3).fill_(2);
  const Tensor weight = torch::rand({5}).to(torch::kHalf);
  for (const auto reduction : {at::Reduction::None, at::Reduction::Mean, at::Reduction::Sum}) {
    for (const int64_t ignored : {-100, 2}) {
      for (const bool is_weighted : {false, true}) {
        const auto loss = [&](const Tensors& t) {
          return torch::nll_loss2d(t[0], labels,
                                   is_weighted ? weight.to(t[0].scalar_type()) : Tensor(),
                                   reduction, ignored);
        };
        const Tensor x = half({3, 5, 7, 9});
        // The sum of weights is rounded between the passes.
        check_op(c10::str("nll_loss2d, reduction ", reduction, " ignoring ", ignored), loss, {x}, 0,
                 kHalfRounding);
        // LibTorch's backward pass refuses other orders in memory.
        const Tensor expected = loss({x});
        EXPECT_TRUE(torch::equal(loss({channels_last(x)}), expected));
        EXPECT_TRUE(torch::equal(loss({sliced(x)}), expected));
      }
    }
  }
  const Tensor x = half({3, 5, 7, 9});
  the_same_everywhere([&] { return torch::nll_loss2d(x, labels); });
  EXPECT_TRUE(torch::nll_loss2d(x, torch::full_like(labels, -100)).isnan().item<bool>());
  for (const int64_t wrong : {-1, 5}) {
    EXPECT_THROW(torch::nll_loss2d(x, torch::full_like(labels, wrong)), c10::Error);
  }
}

TEST_F(HalfStorage, TheLargestOfABagIsExact) {
  for (const int64_t words : {20, 1000}) {  // fewer than indices, and more
    for (const auto dtype : {torch::kLong, torch::kInt}) {
      const Tensor weight = half({words, 8});
      const Tensor indices = torch::randint(0, words, {30}).to(dtype);
      const Tensor offsets = torch::tensor({0, 5, 5, 12, 29}).to(dtype);  // one is empty
      for (const int64_t padding : {int64_t{-1}, indices[0].item<int64_t>()}) {
        const auto bag = [&](const Tensor& table) {
          return torch::embedding_bag(table, indices, offsets, false, 2, false, {}, false, padding);
        };
        const auto ours = bag(weight), exact = bag(weight.to(torch::kFloat));
        EXPECT_TRUE(torch::equal(std::get<0>(ours).to(torch::kFloat), std::get<0>(exact)));
        EXPECT_TRUE(torch::equal(std::get<1>(ours), std::get<1>(exact)));
        EXPECT_TRUE(torch::equal(std::get<2>(ours), std::get<2>(exact)));
        EXPECT_TRUE(torch::equal(std::get<3>(ours), std::get<3>(exact)));
        EXPECT_EQ(std::get<3>(ours).scalar_type(), dtype);
        check_op(
            "embedding_bag max", [&](const Tensors& x) { return std::get<0>(bag(x[0])); }, {weight},
            0, kHalfRounding);
      }
    }
  }
  const Tensor weight = half({1000, 8});
  EXPECT_THROW(torch::embedding_bag(weight, torch::tensor({3, 1000}), torch::tensor({0}), false, 2),
               c10::Error);
  const torch::NoGradGuard no_grad;
  EXPECT_EQ(
      std::get<0>(torch::embedding_bag(weight, torch::tensor({3, 7}), torch::tensor({0}), false, 2))
          .scalar_type(),
      torch::kHalf);
}

}  // namespace
}  // namespace torchamp::testing
