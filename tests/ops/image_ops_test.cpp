// relu and max pooling by TorchAmp's kernels: the bits of LibTorch's, which run when nothing is
// installed.

#include <gtest/gtest.h>

#include <ATen/Parallel.h>
#include <torch/torch.h>

#include "torchamp/kernels/cpu/table.h"
#include "torchamp/ops/install.h"

namespace torchamp::testing {
namespace {

using torch::Tensor;

const torch::ScalarType kDtypes[] = {torch::kFloat, torch::kBFloat16, torch::kHalf};
constexpr double kInf = std::numeric_limits<double>::infinity();

std::vector<const kernels::KernelTable*> tables_here() {
  std::vector<const kernels::KernelTable*> found;
  for (const kernels::KernelTable* table : kernels::cpu_tables()) {
    if (table->runs_here()) found.push_back(table);
  }
  return found;
}

class ImageOps : public ::testing::Test {
 protected:
  ImageOps() : threads_(at::get_num_threads()) { torch::manual_seed(13); }
  ~ImageOps() override {
    at::set_num_threads(threads_);
    kernels::use_cpu_table(*tables_here().back());
  }
  int threads_;
};

Tensor channels_last(const Tensor& x) { return x.contiguous(torch::MemoryFormat::ChannelsLast); }

// -0 is not 0 here. A NaN may hold any payload: LibTorch's differ between a vector and its rest.
bool same_bits(const Tensor& a, const Tensor& b) {
  if (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes() || a.strides() != b.strides()) {
    return false;
  }
  if (!a.is_floating_point()) return torch::equal(a, b);
  const auto bits = a.element_size() == 2 ? torch::kShort : torch::kInt;
  const Tensor both_nan = a.isnan().logical_and(b.isnan());
  return a.view(bits).eq(b.view(bits)).logical_or(both_nan).all().item<bool>();
}

// What LibTorch's kernels give; then ours in every table, on one thread and on two.
void expect_same(const std::string& what, const std::function<std::vector<Tensor>()>& work) {
  const std::vector<Tensor> before = work();
  const ops::Installation installation;
  for (const kernels::KernelTable* table : tables_here()) {
    kernels::use_cpu_table(*table);
    for (const int threads : {1, 2}) {
      at::set_num_threads(threads);
      const std::vector<Tensor> ours = work();
      for (size_t i = 0; i < before.size(); ++i) {
        EXPECT_TRUE(same_bits(ours[i], before[i]))
            << what << ", result " << i << ", " << table->name << ", " << threads << " threads";
      }
    }
  }
}

// Every 16-bit pattern, thrice; among them both zeros, subnormals, inf and NaN.
Tensor all_numbers(torch::ScalarType dtype) {
  const Tensor bits = torch::arange(-32768, 32768, torch::kInt).repeat({3});
  return bits.to(torch::kShort).view(dtype);
}

TEST_F(ImageOps, ReluHasLibTorchsBitsForEvery16BitNumber) {
  for (const auto dtype : {torch::kBFloat16, torch::kHalf}) {
    const Tensor x = all_numbers(dtype);
    const Tensor grad = x.roll(12345);
    expect_same(toString(dtype), [&] {
      Tensor y = x.clone();
      torch::relu_(y);
      return std::vector<Tensor>{torch::relu(x), y, torch::threshold_backward(grad, x, 0)};
    });
  }
}

TEST_F(ImageOps, ReluKeepsBitsInEveryLayoutAndForWhatItDoesNotTake) {
  for (const auto dtype : {torch::kBFloat16, torch::kHalf, torch::kFloat, torch::kDouble}) {
    const Tensor x = torch::randn({3, 33, 21, 17}).to(dtype);
    for (const Tensor& each :
         {x, x.contiguous(torch::MemoryFormat::ChannelsLast), x.transpose(1, 3), x.narrow(2, 1, 19),
          x.slice(3, 0, 17, 2), x.flatten().narrow(0, 1, 20001), x.narrow(0, 0, 0),
          x.narrow(2, 0, 1)}) {
      const Tensor grad = torch::ones_like(each), other = grad.flatten().view(each.sizes());
      const auto layout = [&] {
        Tensor y = each.clone();
        torch::relu_(y);
        return std::vector<Tensor>{torch::relu(each), y, torch::threshold_backward(grad, each, 0),
                                   torch::threshold_backward(other, each, 0),
                                   torch::threshold_backward(grad, each, 0.5)};
      };
      const auto before = layout();
      const ops::Installation installation;
      const auto ours = layout();
      for (size_t i = 0; i < before.size(); ++i) {
        EXPECT_TRUE(torch::equal(before[i], ours[i]) && before[i].strides() == ours[i].strides())
            << dtype << i;
      }
    }
  }
}

struct Pooling {
  std::vector<int64_t> sizes, kernel, stride, padding, dilation;
  bool ceil_mode = false;
};

std::vector<Pooling> poolings() {
  return {{{2, 64, 30, 22}, {3, 3}, {2, 2}, {1, 1}, {1, 1}},
          {{2, 16, 28, 30}, {2, 2}, {2, 2}, {0, 0}, {1, 1}},
          {{1, 80, 17, 19}, {3, 3}, {1, 1}, {1, 1}, {1, 1}},  // nine windows a pixel
          {{3, 48, 15, 14}, {5, 2}, {3, 1}, {2, 1}, {1, 2}},
          {{1, 32, 31, 37}, {3, 3}, {2, 2}, {1, 1}, {2, 2}},
          {{1, 32, 29, 31}, {2, 2}, {5, 4}, {0, 0}, {1, 1}},  // pixels that no window holds
          {{2, 32, 25, 25}, {3, 3}, {2, 2}, {1, 1}, {1, 1}, true},
          {{2, 32, 24, 24}, {2, 2}, {}, {0, 0}, {1, 1}},
          {{2, 24, 24, 24}, {3, 3}, {2, 2}, {1, 1}, {1, 1}}};  // channels for LibTorch
}

void check_pooling(const std::string& what, const Tensor& x, const Pooling& pool) {
  const auto shape =
      torch::max_pool2d(x, pool.kernel, pool.stride, pool.padding, pool.dilation, pool.ceil_mode)
          .sizes()
          .vec();
  const Tensor grad = channels_last(torch::randn(shape).to(x.scalar_type()));
  expect_same(what, [&] {
    const auto [y, indices] = torch::max_pool2d_with_indices(
        x, pool.kernel, pool.stride, pool.padding, pool.dilation, pool.ceil_mode);
    return std::vector<Tensor>{
        y, indices,
        torch::max_pool2d_with_indices_backward(grad, x, pool.kernel, pool.stride, pool.padding,
                                                pool.dilation, pool.ceil_mode, indices)};
  });
}

TEST_F(ImageOps, MaxPoolHasLibTorchsBitsAndPlaces) {
  for (const auto dtype : kDtypes) {
    int number = 0;
    for (const Pooling& pool : poolings()) {
      const std::string what = std::string(toString(dtype)) + ", " + std::to_string(number++);
      const Tensor x = channels_last(torch::randn(pool.sizes).to(dtype));
      check_pooling(what, x, pool);
      check_pooling(what + ", ties", channels_last(torch::randint(-1, 2, pool.sizes).to(dtype)),
                    pool);
      Tensor bad = x.clone();
      for (const double value : {kInf, -kInf, std::nan(""), -0.0, 0.0}) {
        bad = torch::where(channels_last(torch::rand(pool.sizes)) < 0.15,
                           torch::full({}, value, dtype), bad);
      }
      check_pooling(what + ", inf and nan", channels_last(bad), pool);
      check_pooling(what + ", -inf", torch::full_like(x, -kInf), pool);
      check_pooling(what + ", NCHW", x.contiguous(), pool);
    }
  }
}

// Four gradients meet in a pixel: LibTorch rounds each sum to 16 bits, in the order of the windows.
TEST_F(ImageOps, GradientsThatMeetInAPixelAreAddedAsLibTorchAddsThem) {
  for (const auto dtype : kDtypes) {
    Tensor x = torch::rand({2, 32, 33, 33}).to(dtype);
    x.slice(2, 1, 33, 2).slice(3, 1, 33, 2).fill_(2);
    check_pooling(toString(dtype), channels_last(x), {{}, {3, 3}, {2, 2}, {0, 0}, {1, 1}});
    x.slice(2, 2, 33, 2).slice(3, 2, 33, 2).fill_(3);
    check_pooling(toString(dtype), channels_last(x), {{}, {3, 3}, {2, 2}, {0, 0}, {1, 1}});
  }
}

TEST_F(ImageOps, IndicesOutsideOfTheirWindowsAreAddedUpAsLibTorchDoes) {
  for (const auto dtype : kDtypes) {
    const Tensor x = channels_last(torch::randn({2, 32, 24, 24}).to(dtype));
    const auto pooled = torch::max_pool2d_with_indices(x, {2, 2}, {2, 2});
    const Tensor indices = channels_last(torch::full_like(std::get<1>(pooled), 7));
    const Tensor grad = torch::ones_like(std::get<0>(pooled));
    expect_same(toString(dtype), [&] {
      return std::vector<Tensor>{torch::max_pool2d_with_indices_backward(
          grad, x, {2, 2}, {2, 2}, {0, 0}, {1, 1}, false, indices)};
    });
  }
}

TEST_F(ImageOps, MaxPoolMistakesGetLibTorchsOwnErrors) {
  const Tensor x = channels_last(torch::randn({2, 32, 24, 24}));
  const std::vector<std::function<void()>> mistakes = {[&] {
                                                         torch::max_pool2d(x, {0, 2});
                                                       },
                                                       [&] { torch::max_pool2d(x, 2, 2, 2); },
                                                       [&] { torch::max_pool2d(x, 30); },
                                                       [&] {
                                                         torch::max_pool2d(x, {2, 2, 2});
                                                       },
                                                       [&] { torch::max_pool2d(x, 2, 2, 0, 0); }};
  const auto error_of = [](const std::function<void()>& work) -> std::string {
    try {
      work();
    } catch (const c10::Error& error) {
      return error.what_without_backtrace();
    }
    return "";
  };
  for (const auto& mistake : mistakes) {
    const std::string before = error_of(mistake);
    EXPECT_NE(before, "");
    const ops::Installation installation;
    EXPECT_EQ(error_of(mistake), before);
  }
}

// Through autograd, twice.
TEST_F(ImageOps, DoubleBackwardEqualsLibTorchs) {
  const Tensor x = channels_last(torch::randn({2, 16, 24, 24}));
  expect_same("double backward", [&] {
    const Tensor input = x.clone().requires_grad_();
    const Tensor y = torch::max_pool2d(torch::relu(input), 3, 2, 1);
    const Tensor g = torch::autograd::grad({y.pow(3).sum()}, {input}, {}, true, true)[0];
    g.pow(2).sum().backward();
    return std::vector<Tensor>{input.grad()};
  });
}

}  // namespace
}  // namespace torchamp::testing
