// Convolutions of contiguous 16-bit images by way of channels_last: bits, strides, float64, files.

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "torchamp/ops/choice_table.h"
#include "torchamp/ops/choices.h"
#include "torchamp/ops/install.h"

namespace torchamp::ops {
namespace {

using torch::Tensor;
using Tensors = std::vector<Tensor>;

template <Way way>
void is_faster(Choice& choice) {
  for (std::optional<double>& us : choice.us) us = us.has_value() ? std::optional(2.0) : us;
  std::optional<double>& us = choice.us[static_cast<size_t>(way)];
  if (us.has_value()) us = 1.0;
}

class ChannelsLastWay : public ::testing::Test {
 protected:
  ChannelsLastWay() {
    torch::manual_seed(7);
    clear_choices();
    install();
  }
  ~ChannelsLastWay() override {
    detail::set_times_hook(nullptr);
    clear_choices();
    uninstall();
  }
};

struct Conv {
  std::string name;
  std::vector<int64_t> input, weight;
  int64_t stride = 1, padding = 1, dilation = 1, groups = 1;
  bool is_transposed = false;
  int64_t output_padding = 0;
};

std::vector<Conv> all_convolutions() {
  return {{"3x3", {2, 16, 14, 14}, {24, 16, 3, 3}},
          {"3x3 of colours", {2, 3, 33, 31}, {8, 3, 3, 3}},
          {"3x3 by 2", {3, 20, 13, 17}, {17, 20, 3, 3}, 2},
          {"1x1", {2, 40, 9, 9}, {33, 40, 1, 1}, 1, 0},
          {"1x1 of a pixel", {4, 40, 1, 1}, {33, 40, 1, 1}, 1, 0},
          {"of one channel", {2, 1, 12, 12}, {1, 1, 3, 3}},
          {"of one image and one column", {1, 9, 40, 1}, {9, 9, 3, 3}},
          {"groups", {2, 32, 16, 16}, {32, 8, 3, 3}, 1, 1, 1, 4},
          {"depthwise", {2, 64, 16, 16}, {64, 1, 3, 3}, 1, 1, 1, 64},
          {"dilated", {2, 32, 16, 16}, {32, 32, 3, 3}, 1, 2, 2},
          {"transposed", {2, 16, 7, 7}, {16, 8, 4, 4}, 2, 1, 1, 1, true},
          {"transposed, padded", {2, 16, 8, 8}, {16, 12, 3, 3}, 2, 1, 1, 1, true, 1},
          {"volume", {2, 8, 6, 10, 10}, {16, 8, 3, 3, 3}},
          {"volume 1", {2, 16, 8, 8, 8}, {12, 16, 1, 1, 1}, 1, 0}};
}

Tensors forward(const Conv& conv, const Tensor& input, const Tensor& weight, const Tensor& bias) {
  const auto dims = static_cast<size_t>(input.dim() - 2);
  const auto all = [dims](int64_t value) { return std::vector<int64_t>(dims, value); };
  return {torch::convolution(input, weight, bias, all(conv.stride), all(conv.padding),
                             all(conv.dilation), conv.is_transposed, all(conv.output_padding),
                             conv.groups)};
}

Tensors backward(const Conv& conv, const Tensor& grad, const Tensor& input, const Tensor& weight,
                 std::array<bool, 3> mask = {true, true, true}) {
  const auto dims = static_cast<size_t>(input.dim() - 2);
  const auto all = [dims](int64_t value) { return std::vector<int64_t>(dims, value); };
  const int64_t channels = grad.size(1);
  const auto [x, w, b] = torch::convolution_backward(
      grad, input, weight, at::OptionalIntArrayRef({channels}), all(conv.stride), all(conv.padding),
      all(conv.dilation), conv.is_transposed, all(conv.output_padding), conv.groups, mask);
  return {x, w, b};
}

Tensor last(const Tensor& tensor) {
  return tensor.contiguous(tensor.dim() == 5 ? at::MemoryFormat::ChannelsLast3d
                                             : at::MemoryFormat::ChannelsLast);
}
Tensor wide(const Tensor& tensor) { return tensor.to(torch::kFloat); }

Tensors contiguous(const Tensors& tensors, torch::ScalarType dtype) {
  Tensors results;
  for (const Tensor& each : tensors) results.push_back(each.to(dtype).contiguous());
  return results;
}

void expect_same(const Tensors& ours, const Tensors& numbers, const Tensors& layout,
                 const std::string& name) {
  for (size_t i = 0; i < ours.size(); ++i) {
    EXPECT_TRUE(torch::equal(ours[i], numbers[i])) << name << ", output " << i;
    EXPECT_EQ(ours[i].scalar_type(), layout[i].scalar_type()) << name;
    EXPECT_EQ(ours[i].sizes(), layout[i].sizes()) << name;
    EXPECT_EQ(ours[i].strides(), layout[i].strides()) << name << ", output " << i;
  }
}

// LibTorch alone computes what is expected, with no kernel of ours installed.
TEST_F(ChannelsLastWay, HasTheBitsOfChannelsLastAndTheStridesOfLibTorch) {
  for (const Conv& conv : all_convolutions()) {
    const Tensor x = torch::randn(conv.input).to(torch::kBFloat16),
                 w = torch::randn(conv.weight).to(torch::kBFloat16),
                 b = torch::randn(conv.is_transposed ? conv.weight[1] : conv.weight[0])
                         .to(torch::kBFloat16);
    uninstall();
    const Tensors plain = forward(conv, x, w, b);
    const Tensor grad = torch::randn(plain[0].sizes()).to(torch::kBFloat16);
    const Tensors plain_back = backward(conv, grad, x, w);
    const Tensors expected[] = {
        contiguous(forward(conv, last(x), last(w), b), torch::kBFloat16),
        contiguous(forward(conv, last(wide(x)), last(wide(w)), wide(b)), torch::kBFloat16)};
    const Tensors expected_back[] = {
        contiguous(backward(conv, last(grad), last(x), last(w)), torch::kBFloat16),
        contiguous(backward(conv, last(wide(grad)), last(wide(x)), last(wide(w))),
                   torch::kBFloat16)};
    install();
    for (const bool is_wide : {false, true}) {
      clear_choices();
      detail::set_times_hook(is_wide ? is_faster<Way::kFloat32ChannelsLast>
                                     : is_faster<Way::kChannelsLast>);
      for (int call = 0; call < 2; ++call) {  // measured, remembered
        expect_same(forward(conv, x, w, b), expected[is_wide], plain, conv.name);
        expect_same(backward(conv, grad, x, w), expected_back[is_wide], plain_back,
                    conv.name + " backward");
      }
      const ChoiceCount count = count_choices();
      EXPECT_EQ(count.all, 2) << conv.name;
      EXPECT_EQ(is_wide ? count.float32_channels_last : count.channels_last, 2) << conv.name;
    }
  }
}

// Sums of float32 rounded once: half a unit of bfloat16 (2^-8 at most), and 2^-16 of the terms for
// the order of adding.
TEST_F(ChannelsLastWay, FollowsFloat64) {
  const auto expect_close = [](const Tensor& ours, const Tensor& exact, const Tensor& terms,
                               const std::string& name) {
    const Tensor apart = (ours.to(torch::kDouble) - exact).abs();
    const Tensor allowed = exact.abs() / 256 + terms / 65536;
    EXPECT_TRUE((apart <= allowed).all().item<bool>())
        << name << " " << (apart - allowed).max().item<double>();
  };
  detail::set_times_hook(is_faster<Way::kChannelsLast>);
  for (const Conv& conv : all_convolutions()) {
    const Tensor x = torch::randn(conv.input).to(torch::kBFloat16),
                 w = torch::randn(conv.weight).to(torch::kBFloat16);
    const Tensor y = forward(conv, x, w, {})[0];
    const auto exact = [](const Tensor& tensor) { return tensor.to(torch::kDouble); };
    expect_close(y, forward(conv, exact(x), exact(w), {})[0],
                 forward(conv, exact(x).abs(), exact(w).abs(), {})[0], conv.name);
    const Tensor grad = torch::randn(y.sizes()).to(torch::kBFloat16);
    const Tensors ours = backward(conv, grad, x, w);
    const Tensors back = backward(conv, exact(grad), exact(x), exact(w));
    const Tensors terms = backward(conv, exact(grad).abs(), exact(x).abs(), exact(w).abs());
    for (size_t i = 0; i < 3; ++i) {
      expect_close(ours[i], back[i], terms[i], conv.name + " backward " + std::to_string(i));
    }
  }
}

TEST_F(ChannelsLastWay, LeavesOutWhatIsNotAskedFor) {
  const Conv conv = all_convolutions()[0];
  const Tensor x = torch::randn(conv.input).to(torch::kBFloat16),
               w = torch::randn(conv.weight).to(torch::kBFloat16),
               grad = torch::randn({2, 24, 14, 14}).to(torch::kBFloat16);
  detail::set_times_hook(is_faster<Way::kChannelsLast>);
  const Tensors all = backward(conv, grad, x, w);
  const Tensors weight = backward(conv, grad, x, w, {false, true, false});
  EXPECT_FALSE(weight[0].defined());
  EXPECT_FALSE(weight[2].defined());
  EXPECT_TRUE(torch::equal(weight[1], all[1]));
  EXPECT_EQ(count_choices().channels_last, 2);
}

TEST_F(ChannelsLastWay, IsOpenToContiguousImagesAlone) {
  const auto ways_of = [](const Tensor& x, const Tensor& w) {
    clear_choices();
    torch::conv2d(x, w);
    const std::vector<Choice> list = choices();
    return list.size() == 1 && list[0].us[2].has_value() && list[0].us[3].has_value();
  };
  const Tensor x = torch::randn({2, 8, 9, 9}).to(torch::kBFloat16),
               w = torch::randn({8, 8, 3, 3}).to(torch::kBFloat16);
  EXPECT_TRUE(ways_of(x, w));
  EXPECT_FALSE(ways_of(last(x), w));
  EXPECT_FALSE(ways_of(x, last(w)));
  EXPECT_FALSE(ways_of(x.narrow(3, 0, 8), w));
  EXPECT_FALSE(ways_of(x.transpose(2, 3), w));
  EXPECT_FALSE(ways_of(x.narrow(1, 0, 1).expand({2, 8, 9, 9}), w));
}

// A file may name a way that the call does not have.
TEST_F(ChannelsLastWay, IsLibTorchsWhereAFileNamesItForOthers) {
  const Tensor a = torch::randn({400, 70}).to(torch::kBFloat16),  // not small
      b = torch::randn({70, 30}).to(torch::kBFloat16);
  detail::set_times_hook(is_faster<Way::kLibTorch>);
  const Tensor expected = torch::mm(a, b);
  base::StateDict entry;
  entry.set("op", "aten::mm");
  entry.set("arguments", choices().front().arguments);
  entry.set("channels_last_us", 1.0);
  entry.set("way", "channels_last");
  base::List list;
  list.items.emplace_back(std::move(entry));
  base::StateDict state;
  state.set("choices", std::move(list));
  load_choices_state_dict(state);
  EXPECT_EQ(count_choices().channels_last, 1);
  EXPECT_TRUE(torch::equal(torch::mm(a, b), expected));
}

TEST_F(ChannelsLastWay, IsSavedAndFollowedWhenLoaded) {
  const Tensor x = torch::randn({2, 64, 20, 20}).to(torch::kBFloat16),
               w = torch::randn({64, 64, 3, 3}).to(torch::kBFloat16);
  for (const auto hook : {is_faster<Way::kChannelsLast>, is_faster<Way::kFloat32ChannelsLast>}) {
    clear_choices();
    detail::set_times_hook(hook);
    torch::conv2d(x, w);
    const std::vector<Choice> saved = choices();
    const base::StateDict state = choices_state_dict();
    clear_choices();
    detail::set_times_hook(is_faster<Way::kLibTorch>);
    load_choices_state_dict(state);
    torch::conv2d(x, w);
    const std::vector<Choice> loaded = choices();
    ASSERT_EQ(loaded.size(), 1U);
    EXPECT_EQ(loaded[0].us, saved[0].us);
    EXPECT_EQ(loaded[0].way, saved[0].way);
  }
}

TEST_F(ChannelsLastWay, WidensFloat16ThereToo) {
  const Tensor x = torch::randn({2, 64, 20, 20}).to(torch::kHalf),
               w = torch::randn({64, 1, 3, 3}).to(torch::kHalf);
  const auto convolve = [](const Tensor& image, const Tensor& weight) {
    return torch::convolution(image, weight, {}, {1, 1}, {1, 1}, {1, 1}, false, {0, 0}, 64);
  };
  detail::set_widens_half(true);
  detail::set_times_hook(is_faster<Way::kFloat32ChannelsLast>);
  const Tensor ours = convolve(x, w);
  EXPECT_EQ(count_choices().float32_channels_last, 1);
  EXPECT_FALSE(choices()[0].us[0].has_value());  // LibTorch's is not tried
  EXPECT_TRUE(torch::equal(ours, convolve(last(wide(x)), last(wide(w))).to(torch::kHalf)));
  EXPECT_TRUE(ours.is_contiguous());
  const NoChoices off;
  EXPECT_TRUE(torch::equal(convolve(x, w), convolve(wide(x), wide(w)).to(torch::kHalf)));
}

}  // namespace
}  // namespace torchamp::ops
