// bfloat16 by the fastest of its ways: made once, remembered, followed, switched off, saved.

#include "torchamp/ops/choices.h"

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <limits>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/torch.h>

#include "torchamp/base/error.h"
#include "torchamp/kernels/cpu/table.h"
#include "torchamp/ops/choice_table.h"
#include "torchamp/ops/install.h"

namespace torchamp::ops {
namespace {

using torch::Tensor;
using Tensors = std::vector<Tensor>;
using ::testing::HasSubstr;

// Where the call has the way.
template <Way way>
void is_faster(Choice& choice) {
  for (std::optional<double>& us : choice.us) us = us.has_value() ? std::optional(2.0) : us;
  std::optional<double>& us = choice.us[static_cast<size_t>(way)];
  if (us.has_value()) us = 1.0;
}
constexpr auto libtorch_is_faster = is_faster<Way::kLibTorch>;
constexpr auto float32_is_faster = is_faster<Way::kFloat32>;

// 4 % is within the noise.
void float32_is_hardly_faster(Choice& choice) { choice.us = {1.0, 0.96}; }

// With the tables in plain C++, which leave all products to LibTorch: small ones would not be
// chosen.
class Choices : public ::testing::Test {
 protected:
  Choices() : table_(kernels::cpu_table()) {
    torch::manual_seed(5);
    clear_choices();
    kernels::use_cpu_table(**kernels::cpu_tables().begin());
    install();
  }
  ~Choices() override {
    detail::set_times_hook(nullptr);
    set_choosing(true);
    clear_choices();
    kernels::use_cpu_table(table_);
    uninstall();
  }
  const kernels::KernelTable& table_;
};

// The float32 sums of the two ways differ in their last bits, and one in some thousands of them
// rounds otherwise to bfloat16: among 40000 there are some.
constexpr int64_t kRows = 200;
constexpr int64_t kInner = 512;

Tensor bf16(at::IntArrayRef sizes) { return torch::randn(sizes).to(torch::kBFloat16); }

struct Op {
  std::string name;
  std::function<Tensors(const Tensors&)> function;
  Tensors inputs;  // bfloat16
};

Tensors wide(const Tensors& inputs) {
  Tensors results;
  for (const Tensor& each : inputs) {
    results.push_back(each.scalar_type() == torch::kBFloat16 ? each.to(torch::kFloat) : each);
  }
  return results;
}

bool equal(const Tensors& x, const Tensors& y) {
  for (size_t i = 0; i < x.size(); ++i) {
    if (x[i].scalar_type() != y[i].scalar_type() || !torch::equal(x[i], y[i])) return false;
  }
  return x.size() == y.size();
}

template <class Tuple>
Tensors tensors_of(const Tuple& tuple) {
  return std::apply([](const auto&... each) { return Tensors{each...}; }, tuple);
}

std::vector<Op> all_ops() {
  const auto convolve = [](int64_t stride, int64_t groups, int64_t dilation, bool transposed) {
    return [=](const Tensors& x) -> Tensors {
      return {torch::convolution(x[0], x[1], x[2], {stride, stride}, {1, 1}, {dilation, dilation},
                                 transposed, {0, 0}, groups)};
    };
  };
  const auto convolve_back = [](int64_t groups) {
    return [=](const Tensors& x) {
      return tensors_of(torch::convolution_backward(
          x[0], x[1], x[2], at::OptionalIntArrayRef({x[2].size(0)}), {1, 1}, {1, 1}, {1, 1}, false,
          {0, 0}, groups, {true, true, true}));
    };
  };
  // Head size 20, which TorchAmp's own kernels do not take.
  const auto heads = [] { return bf16({2, 3, 24, 20}); };
  const Tensor q = heads(), k = heads(), v = heads(), mask = torch::randn({24, 24});
  const auto attend = [mask](const Tensors& x) {
    return std::get<0>(
        at::_scaled_dot_product_flash_attention_for_cpu(x[0], x[1], x[2], 0.0, false, mask));
  };
  const Tensor sums = std::get<1>(at::_scaled_dot_product_flash_attention_for_cpu(
      q.to(torch::kFloat), k.to(torch::kFloat), v.to(torch::kFloat), 0.0, true));
  return {
      {"mm",
       [](const Tensors& x) -> Tensors { return {torch::mm(x[0], x[1])}; },
       {bf16({kRows, kInner}), bf16({kInner, kRows})}},
      {"mm transposed",
       [](const Tensors& x) -> Tensors { return {torch::mm(x[0], x[1])}; },
       {bf16({65, 33}).t(), bf16({70, 65}).t()}},
      {"mm of a slice",
       [](const Tensors& x) -> Tensors { return {torch::mm(x[0], x[1])}; },
       {bf16({33, 80}).narrow(1, 3, 65), bf16({65, 40})}},
      {"addmm",
       [](const Tensors& x) -> Tensors { return {torch::addmm(x[0], x[1], x[2], 0.5, 2)}; },
       {bf16({40}), bf16({33, 65}), bf16({65, 40})}},
      {"addmm_",
       [](const Tensors& x) -> Tensors { return {x[0].clone().addmm_(x[1], x[2])}; },
       {bf16({33, 40}), bf16({33, 65}), bf16({65, 40})}},
      {"bmm",
       [](const Tensors& x) -> Tensors { return {torch::bmm(x[0], x[1])}; },
       {bf16({5, 20, 33}), bf16({5, 33, 18})}},
      {"baddbmm",
       [](const Tensors& x) -> Tensors { return {torch::baddbmm(x[0], x[1], x[2])}; },
       {bf16({20, 18}), bf16({5, 20, 33}), bf16({5, 33, 18})}},
      {"baddbmm_",
       [](const Tensors& x) -> Tensors { return {x[0].clone().baddbmm_(x[1], x[2])}; },
       {bf16({5, 20, 18}), bf16({5, 20, 33}), bf16({5, 33, 18})}},
      {"convolution",
       convolve(1, 1, 1, false),
       {bf16({2, 16, 14, 14}), bf16({24, 16, 3, 3}), bf16({24})}},
      {"convolution channels_last",
       convolve(2, 1, 1, false),
       {bf16({2, 16, 14, 14}).contiguous(at::MemoryFormat::ChannelsLast),
        bf16({24, 16, 3, 3}).contiguous(at::MemoryFormat::ChannelsLast), bf16({24})}},
      {"convolution in groups",
       convolve(1, 4, 1, false),
       {bf16({2, 16, 14, 14}), bf16({24, 4, 3, 3}), bf16({24})}},
      {"convolution dilated",
       convolve(1, 1, 2, false),
       {bf16({2, 16, 14, 14}), bf16({24, 16, 3, 3}), bf16({24})}},
      {"convolution transposed",
       convolve(2, 1, 1, true),
       {bf16({2, 16, 7, 7}), bf16({16, 8, 3, 3}), bf16({8})}},
      {"convolution_backward",
       convolve_back(1),
       {bf16({2, 24, 14, 14}), bf16({2, 16, 14, 14}), bf16({24, 16, 3, 3})}},
      {"convolution_backward by channel",
       convolve_back(16),
       {bf16({2, 16, 14, 14}), bf16({2, 16, 14, 14}), bf16({16, 1, 3, 3})}},
      {"attention", [attend](const Tensors& x) -> Tensors { return {attend(x)}; }, {q, k, v}},
      {"attention backward",
       [sums](const Tensors& x) {
         return tensors_of(at::_scaled_dot_product_flash_attention_for_cpu_backward(
             x[0], x[1], x[2], x[3], x[4], sums, 0.0, true));
       },
       {heads(), q, k, v, heads()}},
  };
}

// The bits of each way come from LibTorch alone, with no kernel of ours installed.
TEST_F(Choices, ResultsAreTheBitsOfTheChosenWay) {
  for (const Op& op : all_ops()) {
    uninstall();
    const Tensors by_libtorch = op.function(op.inputs);
    Tensors by_float32;
    for (const Tensor& each : op.function(wide(op.inputs))) {
      by_float32.push_back(each.to(torch::kBFloat16));
    }
    EXPECT_FALSE(op.name == "mm" && equal(by_libtorch, by_float32));
    install();
    for (const bool float32 : {true, false}) {
      clear_choices();
      detail::set_times_hook(float32 ? float32_is_faster : libtorch_is_faster);
      const Tensors first = op.function(op.inputs);  // measures
      EXPECT_EQ(count_choices().all, 1) << op.name;
      EXPECT_EQ(count_choices().float32, float32 ? 1 : 0) << op.name;
      detail::set_times_hook(float32 ? libtorch_is_faster : float32_is_faster);
      const Tensors second = op.function(op.inputs);  // remembers
      EXPECT_EQ(count_choices().all, 1) << op.name;
      const Tensors& expected = float32 ? by_float32 : by_libtorch;
      EXPECT_TRUE(equal(first, expected)) << op.name << (float32 ? " float32" : " LibTorch's");
      EXPECT_TRUE(equal(second, expected)) << op.name << (float32 ? " float32" : " LibTorch's");
      for (size_t i = 0; i < first.size(); ++i) {
        EXPECT_EQ(first[i].strides(), expected[i].strides()) << op.name;
      }
    }
  }
}

TEST_F(Choices, AreListedWithBothTimes) {
  torch::mm(bf16({16, 64}), bf16({64, 32}));
  const std::vector<Choice> list = choices();
  ASSERT_EQ(list.size(), 1U);
  EXPECT_EQ(list[0].op, "aten::mm");
  const std::string threads = std::to_string(torch::get_num_threads());
  EXPECT_EQ(list[0].arguments,
            "BFloat16 16x64 64x32, " + threads + (threads == "1" ? " thread" : " threads"));
  const auto [libtorch, float32, channels_last, float32_channels_last] = list[0].us;
  EXPECT_GT(libtorch.value(), 0.0);
  EXPECT_GT(float32.value(), 0.0);
  EXPECT_FALSE(channels_last.has_value());  // no image
  EXPECT_FALSE(float32_channels_last.has_value());
  EXPECT_EQ(list[0].way, *float32 < 0.95 * *libtorch ? Way::kFloat32 : Way::kLibTorch);
}

TEST_F(Choices, StayLibTorchsWithoutAMargin) {
  detail::set_times_hook(float32_is_hardly_faster);
  torch::mm(bf16({16, 64}), bf16({64, 32}));
  EXPECT_EQ(count_choices().float32, 0);
}

void spin(double us) {
  const auto end =
      std::chrono::steady_clock::now() + std::chrono::nanoseconds(static_cast<int64_t>(us * 1000));
  while (std::chrono::steady_clock::now() < end) {
  }
}

// Something makes LibTorch's kernel take five times as long for more than a look.
TEST_F(Choices, OutlastADisturbance) {
  std::optional<std::chrono::steady_clock::time_point> start;
  int calls = 0;
  const auto run = [&](Way way) {
    const auto now = std::chrono::steady_clock::now();
    if (!start.has_value()) start = now;
    const bool is_disturbed = now - *start < std::chrono::microseconds(1500);
    spin(way == Way::kFloat32 ? 40 : is_disturbed ? 100 : 20);
    ++calls;
  };
  const detail::CallHash hash(&calls, torch::kBFloat16, 1);
  EXPECT_EQ(detail::choose(hash, "disturbed", "a", {Way::kLibTorch, Way::kFloat32}, run),
            Way::kLibTorch);
  EXPECT_LT(calls, 400);
}

// Of matrices whose copies in float32 would be large, only LibTorch's kernel is tried; of images,
// that in channels_last, too.
TEST_F(Choices, HoldNoFloat32CopiesOfLargeTensors) {
  detail::set_times_hook(float32_is_faster);
  const Tensor large = torch::zeros({2048, 1024}, torch::kBFloat16);
  torch::mm(large, torch::zeros({1024, 2}, torch::kBFloat16));
  EXPECT_EQ(count_choices().all, 0);
  torch::conv2d(large.view({2, 16, 256, 256}), bf16({2, 16, 1, 1}));
  const std::vector<Choice> list = choices();
  ASSERT_EQ(list.size(), 1U);
  const auto [libtorch, float32, channels_last, float32_channels_last] = list[0].us;
  EXPECT_TRUE(libtorch.has_value());
  EXPECT_FALSE(float32.has_value());
  EXPECT_TRUE(channels_last.has_value());
  EXPECT_FALSE(float32_channels_last.has_value());
}

// Channels alone, and transposed convolutions, are slow in bfloat16 at any size.
TEST_F(Choices, TryFloat32ForLargeDepthwiseAndTransposedConvolutions) {
  detail::set_times_hook(float32_is_faster);
  const Tensor large = bf16({2, 16, 256, 256}).requires_grad_();
  const auto made_and_float32 = [&](const Tensor& result) {
    result.sum().backward();
    const ChoiceCount count = count_choices();
    clear_choices();
    return std::pair(count.all, count.float32);
  };
  const std::pair<int64_t, int64_t> both(2, 2);  // forward and backward
  const Tensor depthwise = bf16({16, 1, 3, 3}).requires_grad_();
  EXPECT_EQ(made_and_float32(torch::conv2d(large, depthwise, {}, 1, 1, 1, 16)), both);
  const Tensor transposed = bf16({16, 4, 2, 2}).requires_grad_();
  EXPECT_EQ(made_and_float32(torch::conv_transpose2d(large, transposed, {}, 2)), both);
}

TEST_F(Choices, DependOnShapeLayoutAndThreadsButNotOnNumbers) {
  const auto made = [](const Tensor& a, const Tensor& b) {
    const int64_t before = count_choices().all;
    torch::mm(a, b);
    return count_choices().all - before;
  };
  EXPECT_EQ(made(bf16({16, 64}), bf16({64, 32})), 1);
  EXPECT_EQ(made(bf16({16, 64}), bf16({64, 32})), 0);
  EXPECT_EQ(made(bf16({17, 64}), bf16({64, 32})), 1);
  EXPECT_EQ(made(bf16({64, 16}).t(), bf16({64, 32})), 1);
  EXPECT_EQ(made(bf16({16, 70}).narrow(1, 0, 64), bf16({64, 32})), 1);
  EXPECT_EQ(made(bf16({1, 64}).expand({16, 64}), bf16({64, 32})), 1);
  EXPECT_EQ(made(bf16({1000, 64}), bf16({64, 32})), 1);
  EXPECT_EQ(made(bf16({1001, 64}), bf16({64, 32})), 0);  // a neighbour
  EXPECT_EQ(made(bf16({1100, 64}), bf16({64, 32})), 1);
  EXPECT_EQ(made(torch::randn({16, 64}), torch::randn({64, 32})), 0);
  EXPECT_EQ(made(torch::randn({16, 64}, torch::kDouble), torch::randn({64, 32}, torch::kDouble)),
            0);
  const int threads = torch::get_num_threads();
  torch::set_num_threads(threads + 1);
  EXPECT_EQ(made(bf16({16, 64}), bf16({64, 32})), 1);
  torch::set_num_threads(threads);
  torch::convolution(bf16({1, 4, 8, 8}), bf16({4, 4, 3, 3}), {}, {1, 1}, {1, 1}, {1, 1}, false,
                     {0, 0}, 1);
  const int64_t before = count_choices().all;
  torch::convolution(bf16({1, 4, 8, 8}), bf16({4, 4, 3, 3}), {}, {1, 1}, {0, 0}, {1, 1}, false,
                     {0, 0}, 1);
  EXPECT_EQ(count_choices().all, before + 1);
  EXPECT_THAT(choices().back().arguments, HasSubstr("[1,1] [0,0] [1,1] false [0,0] 1"));
}

TEST_F(Choices, AreSwitchedOff) {
  detail::set_times_hook(float32_is_faster);
  const Tensor a = bf16({kRows, kInner}), b = bf16({kInner, kRows});
  uninstall();
  const Tensor plain = torch::mm(a, b);
  install();
  const Tensor chosen = torch::mm(a, b);
  ASSERT_FALSE(torch::equal(plain, chosen));
  {
    const NoChoices off;
    EXPECT_FALSE(choosing());
    EXPECT_TRUE(torch::equal(torch::mm(a, b), plain));
    torch::mm(b.t(), a.t());
  }
  EXPECT_TRUE(choosing());
  set_choosing(false);
  set_choosing(false);
  EXPECT_TRUE(torch::equal(torch::mm(a, b), plain));
  set_choosing(true);
  EXPECT_TRUE(torch::equal(torch::mm(a, b), chosen));
  uninstall();
  setenv("TORCHAMP_OPS_CHOICES", "off", 1);
  install();
  EXPECT_FALSE(choosing());
  EXPECT_TRUE(torch::equal(torch::mm(a, b), plain));
  EXPECT_EQ(count_choices().all, 1);
  uninstall();
  setenv("TORCHAMP_OPS_CHOICES", "some", 1);
  EXPECT_EQ(choices_environment_error(),
            "[TORCHAMP_OPS_CHOICES] The environment variable TORCHAMP_OPS_CHOICES is 'some'; on, "
            "off or no value is accepted.");
  EXPECT_THROW(install(), base::UsageError);
  unsetenv("TORCHAMP_OPS_CHOICES");
  EXPECT_FALSE(choosing());  // nothing is installed
  install();
  EXPECT_TRUE(choosing());
}

TEST_F(Choices, AreSavedAndFollowedWhenLoaded) {
  const Tensor a = bf16({kRows, kInner}), b = bf16({kInner, kRows});
  detail::set_times_hook(float32_is_faster);
  const Tensor first = torch::mm(a, b);
  const base::StateDict state = choices_state_dict();
  const std::vector<Choice> saved = choices();
  detail::set_times_hook(libtorch_is_faster);
  clear_choices();
  EXPECT_FALSE(torch::equal(torch::mm(a, b), first));
  load_choices_state_dict(state);  // over what was chosen here
  EXPECT_TRUE(torch::equal(torch::mm(a, b), first));
  clear_choices();
  load_choices_state_dict(state);
  EXPECT_TRUE(torch::equal(torch::mm(a, b), first));
  const std::vector<Choice> loaded = choices();
  ASSERT_EQ(loaded.size(), 1U);
  EXPECT_EQ(loaded[0].op, saved[0].op);
  EXPECT_EQ(loaded[0].arguments, saved[0].arguments);
  EXPECT_EQ(loaded[0].us, saved[0].us);
  EXPECT_EQ(loaded[0].way, saved[0].way);
}

base::StateDict state_of(int64_t count, const base::Value& way) {
  base::List items;
  for (int64_t i = 0; i < count; ++i) {
    base::StateDict entry;
    entry.set("op", "aten::mm");
    entry.set("arguments", "of shape " + std::to_string(i));
    entry.set("libtorch_us", 1.0);
    entry.set("float32_us", 2.0);
    entry.set("way", way);
    items.items.emplace_back(std::move(entry));
  }
  base::StateDict state;
  state.set("choices", std::move(items));
  return state;
}

TEST_F(Choices, OfADamagedFileAreRefusedWhole) {
  torch::mm(bf16({16, 64}), bf16({64, 32}));
  base::StateDict without_list;
  EXPECT_THROW(load_choices_state_dict(without_list), base::CheckpointError);
  base::StateDict with_number;
  with_number.set("choices", 3);
  EXPECT_THROW(load_choices_state_dict(with_number), base::CheckpointError);
  EXPECT_THROW(load_choices_state_dict(state_of(1, "by luck")), base::CheckpointError);
  EXPECT_THROW(load_choices_state_dict(state_of(1, 7)), base::CheckpointError);
  // A way that was not measured.
  EXPECT_THROW(load_choices_state_dict(state_of(1, "channels_last")), base::CheckpointError);
  try {
    load_choices_state_dict(state_of(1, "by luck"));
  } catch (const base::CheckpointError& error) {
    EXPECT_STREQ(
        error.what(),
        "[ops choices] The way 'by luck' is not known; LibTorch's, float32, channels_last "
        "and float32 channels_last are accepted. Was the file written by a later version?");
  }
  EXPECT_THROW(load_choices_state_dict(state_of(kMaxChoices + 1, "float32")),
               base::CheckpointError);
  EXPECT_EQ(count_choices().all, 1);
}

TEST_F(Choices, AreBounded) {
  detail::set_times_hook(float32_is_faster);
  const Tensor a = bf16({kRows, kInner}), b = bf16({kInner, kRows});
  load_choices_state_dict(state_of(kMaxChoices, "LibTorch's"));
  const Tensor result = torch::mm(a, b);
  EXPECT_EQ(count_choices().all, kMaxChoices);
  {
    const NoChoices off;
    EXPECT_TRUE(torch::equal(torch::mm(a, b), result));
  }
  clear_choices();
  torch::mm(a, b);
  EXPECT_EQ(count_choices().all, 1);
  load_choices_state_dict(state_of(kMaxChoices, "LibTorch's"));  // those of the file count
  EXPECT_EQ(count_choices().all, kMaxChoices);
}

std::atomic<int> measured = 0;
void count_measurements(Choice& choice) {
  (++measured % 2 == 0 ? libtorch_is_faster : float32_is_faster)(choice);
}

TEST_F(Choices, ThreadsThatMeetAShapeAtOnceGetOneChoice) {
  detail::set_times_hook(count_measurements);
  const Tensor a = bf16({kRows, kInner}), b = bf16({kInner, kRows}), x = bf16({2, 8, 9, 9}),
               w = bf16({8, 8, 3, 3});
  for (int round = 0; round < 5; ++round) {
    clear_choices();
    measured = 0;
    std::vector<Tensors> results(6);
    std::vector<std::thread> threads;
    for (Tensors& result : results) {
      threads.emplace_back([&] {
        for (int k = 0; k < 10; ++k) result = {torch::mm(a, b), torch::conv2d(x, w)};
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(measured, 2);
    EXPECT_EQ(count_choices().all, 2);
    for (const Tensors& result : results) EXPECT_TRUE(equal(result, results[0]));
  }
}

TEST_F(Choices, AreNotMadeWhereDeterministicAlgorithmsAreAskedFor) {
  detail::set_times_hook(float32_is_faster);
  const Tensor a = bf16({kRows, kInner}), b = bf16({kInner, kRows});
  at::globalContext().setDeterministicAlgorithms(true, false);
  const Tensor plain = torch::mm(a, b);
  at::globalContext().setDeterministicAlgorithms(false, false);
  EXPECT_EQ(count_choices().all, 0);
  const Tensor chosen = torch::mm(a, b);
  EXPECT_FALSE(torch::equal(plain, chosen));
  at::globalContext().setDeterministicAlgorithms(true, false);
  EXPECT_TRUE(torch::equal(torch::mm(a, b), chosen));  // known ones are followed
  at::globalContext().setDeterministicAlgorithms(false, false);
}

TEST_F(Choices, LeaveMistakesToLibTorch) {
  const auto error_of = [](const auto& mistake) {
    try {
      mistake();
    } catch (const c10::Error& error) {
      return std::string(error.what_without_backtrace());
    }
    return std::string("no error");
  };
  const std::vector<std::function<void()>> mistakes = {
      [] {
        torch::mm(bf16({2, 3}), bf16({4, 5}));
      },
      [] {
        torch::mm(bf16({2, 3}), torch::ones({3, 5}));
      },
      [] {
        torch::mm(bf16({2, 3}), torch::ones({3, 5}, torch::kHalf));
      },
      [] {
        torch::conv2d(bf16({1, 3, 8, 8}), bf16({4, 2, 3, 3}));
      },
      [] {
        torch::conv2d(bf16({1, 3, 2, 2}), bf16({4, 3, 3, 3}));
      },
  };
  for (size_t i = 0; i < mistakes.size(); ++i) {
    const std::string ours = error_of(mistakes[i]);
    uninstall();
    EXPECT_EQ(ours, error_of(mistakes[i])) << i;
    EXPECT_NE(ours, "no error") << i;
    install();
  }
  EXPECT_EQ(count_choices().all, 0);
}

TEST_F(Choices, KeepInfinitiesNaNsAndEmptyTensors) {
  detail::set_times_hook(float32_is_faster);
  const float largest = 3.3895e38F;  // a bfloat16
  const Tensor huge = torch::full({4, 8}, largest, torch::kBFloat16);
  EXPECT_TRUE(torch::mm(huge, huge.t()).isinf().all().item<bool>());
  Tensor a = bf16({4, 8});
  a[1][2] = std::numeric_limits<float>::quiet_NaN();
  const Tensor product = torch::mm(a, bf16({8, 3}));
  EXPECT_TRUE(product[1].isnan().all().item<bool>());
  EXPECT_FALSE(product[0].isnan().any().item<bool>());
  EXPECT_EQ(torch::mm(bf16({0, 4}), bf16({4, 3})).sizes(), at::IntArrayRef({0, 3}));
  EXPECT_EQ(torch::mm(bf16({2, 0}), bf16({0, 3})).abs().sum().item<float>(), 0.0F);
  EXPECT_EQ(torch::bmm(bf16({0, 2, 3}), bf16({0, 3, 4})).sizes(), at::IntArrayRef({0, 2, 4}));
  const Tensor nan = torch::full({4, 3}, std::nan(""), torch::kBFloat16);
  EXPECT_FALSE(torch::addmm(nan, bf16({4, 8}), bf16({8, 3}), 0, 1).isnan().any().item<bool>());
}

TEST_F(Choices, GradientsAndTheirGradientsFollowFloat64) {
  for (const auto hook : {float32_is_faster, libtorch_is_faster}) {
    clear_choices();
    detail::set_times_hook(hook);
    const auto second = [](torch::ScalarType dtype, const Tensor& x0, const Tensor& w0,
                           const auto& function) {
      const Tensor x = x0.to(dtype).detach().requires_grad_(),
                   w = w0.to(dtype).detach().requires_grad_();
      const Tensors first =
          torch::autograd::grad({function(x, w).pow(2).sum()}, {x, w}, {}, true, true);
      return torch::autograd::grad({first[0].pow(2).sum() + first[1].pow(2).sum() * 0.01}, {x, w});
    };
    const auto compare = [&](const Tensor& x, const Tensor& w, const auto& function) {
      const Tensors a = second(torch::kBFloat16, x, w, function);
      const Tensors b = second(torch::kDouble, x, w, function);
      for (size_t i = 0; i < 2; ++i) {
        const double apart = (a[i].to(torch::kDouble) - b[i]).norm().item<double>();
        EXPECT_LE(apart, 0.04 * b[i].norm().item<double>());  // ten roundings of 2^-9
      }
    };
    compare(bf16({6, 10}) * 0.3, bf16({5, 10}) * 0.3,
            [](const Tensor& x, const Tensor& w) { return torch::linear(x, w); });
    compare(bf16({2, 3, 8, 8}) * 0.2, bf16({4, 3, 3, 3}) * 0.2,
            [](const Tensor& x, const Tensor& w) { return torch::conv2d(x, w, {}, 1, 1); });
    EXPECT_GT(count_choices().all, 4);
  }
}

TEST_F(Choices, WorkInInferenceMode) {
  detail::set_times_hook(float32_is_faster);
  const c10::InferenceMode inference;
  const Tensor a = bf16({kRows, kInner}), b = bf16({kInner, kRows});
  const Tensor first = torch::mm(a, b);
  EXPECT_TRUE(first.is_inference());
  EXPECT_TRUE(torch::equal(torch::mm(a, b), first));
}

// As on a CPU with fp16 arithmetic: float16 takes the faster way too, and LibTorch's when off.
TEST_F(Choices, AreMadeForFloat16WhereTheCpuComputesInIt) {
  const Tensor a = torch::randn({33, 64}).to(torch::kHalf),
               b = torch::randn({64, 40}).to(torch::kHalf);
  const Tensor by_float32 = torch::mm(a, b);
  EXPECT_EQ(count_choices().all, 0);
  detail::set_widens_half(false);
  detail::set_times_hook(libtorch_is_faster);
  const Tensor by_libtorch = torch::mm(a, b);
  EXPECT_THAT(choices().back().arguments, HasSubstr("Half 33x64 64x40, "));
  EXPECT_FALSE(torch::equal(by_libtorch, by_float32));
  clear_choices();
  detail::set_times_hook(float32_is_faster);
  EXPECT_TRUE(torch::equal(torch::mm(a, b), by_float32));
  set_choosing(false);
  EXPECT_TRUE(torch::equal(torch::mm(a, b), by_libtorch));
  detail::set_widens_half(true);
}

}  // namespace
}  // namespace torchamp::ops
