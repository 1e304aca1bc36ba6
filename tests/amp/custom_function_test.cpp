// custom_fwd and custom_bwd: what a Function's forward recorded is what its backward runs in.

#include "torchamp/amp/custom_function.h"

#include <array>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include <ATen/autocast_mode.h>

#include "amp/support.h"
#include "torchamp/amp/autocast.h"
#include "torchamp/amp/grad_scaler.h"

namespace torchamp::test {
namespace {

using amp::Autocast;
using amp::custom_bwd;
using amp::custom_fwd;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

bool on(at::DeviceType device = at::kCPU) { return at::autocast::is_autocast_enabled(device); }
at::ScalarType dtype(at::DeviceType device = at::kCPU) {
  return at::autocast::get_autocast_dtype(device);
}

// What the last backward saw.
struct Seen {
  bool enabled = false;
  at::ScalarType dtype = at::kFloat;
  at::ScalarType mm = at::kFloat;
};
Seen seen_forward;
Seen seen_backward;

Seen look() {
  return {on(), dtype(), torch::mm(torch::ones({1, 1}), torch::ones({1, 1})).scalar_type()};
}

// The product that users write: saves its float32 inputs, multiplies by them in backward.
struct Product : Function<Product> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& w,
                            std::optional<at::ScalarType> cast) {
    const auto body = [ctx](const at::Tensor& x_seen, const at::Tensor& w_seen) {
      seen_forward = look();
      ctx->save_for_backward({x_seen, w_seen});
      return torch::mm(x_seen, w_seen);
    };
    return cast.has_value() ? custom_fwd(ctx, at::kCPU, *cast, body, x, w)
                            : custom_fwd(ctx, at::kCPU, body, x, w);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    return custom_bwd(ctx, [&]() -> variable_list {
      seen_backward = look();
      const auto saved = ctx->get_saved_variables();
      return {torch::mm(grads[0], saved[1].t()), torch::mm(saved[0].t(), grads[0]), at::Tensor()};
    });
  }
};

struct PlainProduct : Function<PlainProduct> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& w) {
    ctx->save_for_backward({x, w});
    return torch::mm(x, w);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    return {torch::mm(grads[0], saved[1].t()), torch::mm(saved[0].t(), grads[0])};
  }
};

struct Pair {
  at::Tensor x = torch::tensor({{1.01F, 2.02F}, {-3.03F, 4.04F}}).requires_grad_();
  at::Tensor w = torch::tensor({{0.51F, -0.13F}, {0.27F, 0.99F}}).requires_grad_();
};

// Case 50. LibTorch's own way, for the record: backward is off and meets two dtypes.
TEST(CustomFunction, PlainFunctionFailsInBackward) {
  Pair p;
  at::Tensor y;
  {
    const Autocast region(at::kCPU, at::kBFloat16);
    y = PlainProduct::apply(p.x, p.w);
  }
  expect_contains(error_of([&] { y.sum().backward(); }), "same dtype");
}

TEST(CustomFunction, BackwardRunsInTheStateOfForward) {
  for (const auto low : {at::kBFloat16, at::kHalf}) {
    for (const bool inside_another : {false, true}) {
      Pair p;
      at::Tensor y;
      {
        const Autocast region(at::kCPU, low);
        y = Product::apply(p.x, p.w, std::nullopt);
      }
      EXPECT_EQ(y.scalar_type(), low);
      {
        std::optional<Autocast> other;
        if (inside_another) {
          other.emplace(at::kCPU, low == at::kHalf ? at::kBFloat16 : at::kHalf);
        }
        y.sum().backward();
        EXPECT_EQ(on(), inside_another);
      }
      EXPECT_TRUE(seen_backward.enabled);
      EXPECT_EQ(seen_backward.dtype, low);
      EXPECT_EQ(seen_backward.mm, low);
      EXPECT_EQ(p.x.grad().scalar_type(), at::kFloat);
      // By hand: the gradient is ones * w^T, each product rounded to the low type.
      const auto ones = torch::ones({2, 2}, low);
      EXPECT_TRUE(
          torch::equal(p.x.grad(), torch::mm(ones, p.w.detach().to(low).t()).to(torch::kFloat)));
      EXPECT_TRUE(
          torch::equal(p.w.grad(), torch::mm(p.x.detach().to(low).t(), ones).to(torch::kFloat)));
    }
  }
}

TEST(CustomFunction, ForwardOutsideSwitchesARegionAroundBackwardOff) {
  Pair p;
  const auto y = Product::apply(p.x, p.w, std::nullopt);
  EXPECT_EQ(y.scalar_type(), at::kFloat);
  const Autocast region(at::kCPU, at::kHalf);
  y.sum().backward();
  EXPECT_FALSE(seen_backward.enabled);
  EXPECT_EQ(seen_backward.dtype, at::kBFloat16);  // that of forward, though it is off
  EXPECT_TRUE(on());
  EXPECT_EQ(dtype(), at::kHalf);
}

TEST(CustomFunction, CastInputsRunsBothBodiesInThatDtypeWithAutocastOff) {
  Pair p;
  at::Tensor y;
  {
    const Autocast region(at::kCPU, at::kBFloat16);
    y = Product::apply(p.x.detach().to(at::kBFloat16).requires_grad_(), p.w, at::kFloat);
    EXPECT_EQ(y.scalar_type(), at::kFloat);
    EXPECT_FALSE(seen_forward.enabled);
    EXPECT_TRUE(on());
    y.sum().backward();
  }
  EXPECT_FALSE(seen_backward.enabled);
  EXPECT_EQ(seen_backward.mm, at::kFloat);
  EXPECT_EQ(p.w.grad().scalar_type(), at::kFloat);
}

TEST(CustomFunction, CastInputsIsNothingOutsideOfAnEnabledRegion) {
  Pair p;
  const auto half = p.x.detach().to(at::kHalf);
  const auto run = [&] {
    AutogradContext ctx;
    return custom_fwd(
        &ctx, at::kCPU, at::kFloat, [](const at::Tensor& x) { return x.scalar_type(); }, half);
  };
  EXPECT_EQ(run(), at::kHalf);
  const Autocast outer(at::kCPU, at::kBFloat16);
  EXPECT_EQ(run(), at::kFloat);
  const Autocast island(at::kCPU, {}, {.enabled = false});
  EXPECT_EQ(run(), at::kHalf);
}

TEST(CustomFunction, CastsOnlyWhatIsEligible) {
  const Autocast region(at::kCPU, at::kBFloat16);
  AutogradContext ctx;
  const auto types = custom_fwd(
      &ctx, at::kCPU, at::kHalf,
      [](const std::vector<at::Tensor>& tensors) {
        std::vector<at::ScalarType> seen;
        for (const auto& tensor : tensors) {
          seen.push_back(tensor.defined() ? tensor.scalar_type() : at::ScalarType::Undefined);
        }
        return seen;
      },
      std::vector<at::Tensor>{
          torch::ones(1), torch::ones(1, at::kBFloat16), torch::ones(1, at::kDouble),
          torch::ones(1, at::kLong), torch::ones(1, at::kBool), torch::ones(1, at::kComplexFloat),
          torch::ones(1, at::TensorOptions(at::kFloat).device(at::kMeta)), at::Tensor()});
  EXPECT_EQ(types, (std::vector<at::ScalarType>{at::kHalf, at::kHalf, at::kDouble, at::kLong,
                                                at::kBool, at::kComplexFloat, at::kFloat,
                                                at::ScalarType::Undefined}));
}

TEST(CustomFunction, CastsInsideOfContainersAndPassesTheRest) {
  const Autocast region(at::kCPU, at::kBFloat16);
  const auto one = torch::ones(1);
  AutogradContext ctx;
  using Nested = std::map<std::string, std::pair<int, std::optional<at::Tensor>>>;
  const std::string word = "word";
  const std::vector<at::Tensor> listed{one, one};
  const std::vector<bool> flags{true, false};
  int counter = 0;
  custom_fwd(
      &ctx, at::kCPU, at::kHalf,
      [&](at::TensorList list, const std::tuple<at::Tensor, double>& tuple, const Nested& nested,
          const std::array<at::Tensor, 1>& array, std::optional<at::Tensor> none,
          const std::string& text, const std::vector<bool>& bits, int* pointer) {
        EXPECT_EQ(list[1].scalar_type(), at::kHalf);
        EXPECT_EQ(std::get<0>(tuple).scalar_type(), at::kHalf);
        EXPECT_EQ(std::get<1>(tuple), 2.5);
        EXPECT_EQ(nested.at("a").second->scalar_type(), at::kHalf);
        EXPECT_FALSE(nested.at("b").second.has_value());
        EXPECT_EQ(array[0].scalar_type(), at::kHalf);
        EXPECT_FALSE(none.has_value());
        EXPECT_EQ(text, "word");
        EXPECT_EQ(bits, flags);
        ++*pointer;
      },
      at::TensorList(listed), std::tuple(one, 2.5),
      Nested{{"a", {1, one}}, {"b", {2, std::nullopt}}}, std::array<at::Tensor, 1>{one},
      std::optional<at::Tensor>(), word, flags, &counter);
  EXPECT_EQ(counter, 1);
  EXPECT_EQ(listed[0].scalar_type(), at::kFloat);  // the caller's own are left alone
}

// Two devices: XPU's state can be set without such a device.
struct TwoDevices : Function<TwoDevices> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x) {
    return custom_fwd(ctx, at::kXPU, [&] {
      return custom_fwd(
          ctx, at::kCPU, at::kFloat, [](const at::Tensor& y) { return y * 2; }, x);
    });
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    return custom_bwd(ctx, [&]() -> variable_list {
      EXPECT_TRUE(on(at::kXPU));
      EXPECT_EQ(dtype(at::kXPU), at::kHalf);
      EXPECT_FALSE(on());
      return {grads[0] * 2};
    });
  }
};

TEST(CustomFunction, RecordsTwoDevices) {
  const auto x = P(3);
  at::Tensor y;
  {
    const Autocast cpu(at::kCPU, at::kBFloat16);
    const Autocast xpu(at::kXPU, at::kHalf);
    y = TwoDevices::apply(x);
  }
  const Autocast cpu(at::kCPU, at::kBFloat16);
  y.sum().backward();
  EXPECT_EQ(grad(x), 2.0F);
  EXPECT_FALSE(on(at::kXPU));
  EXPECT_TRUE(on());
}

// y = x^3 with a backward made of differentiable ops, one of them a Function of the same kind.
struct Cube : Function<Cube> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x) {
    return custom_fwd(ctx, at::kCPU, [&] {
      ctx->save_for_backward({x});
      return x * x * x;
    });
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    return custom_bwd(ctx, [&]() -> variable_list {
      const auto x = ctx->get_saved_variables()[0];
      return {3 * Product::apply(x, x, std::nullopt) * grads[0]};
    });
  }
};

TEST(CustomFunction, GradientsOfGradientsKeepTheState) {
  const auto x = torch::full({1, 1}, 2.0F).requires_grad_();
  at::Tensor y;
  {
    const Autocast region(at::kCPU, at::kBFloat16);
    y = Cube::apply(x);
  }
  const auto first = torch::autograd::grad({y}, {x}, {}, true, /*create_graph=*/true)[0];
  EXPECT_EQ(value(first), 12.0F);  // 3 x^2
  EXPECT_EQ(seen_forward.dtype, at::kBFloat16);
  EXPECT_TRUE(seen_forward.enabled);  // the inner Function was applied inside custom_bwd
  seen_backward = {};
  first.sum().backward();
  EXPECT_TRUE(seen_backward.enabled);
  EXPECT_EQ(grad(x), 12.0F);  // 6 x
}

TEST(CustomFunction, BackwardKeepsThePolicyOfForward) {
  AutogradContext ctx;
  const auto half = torch::ones({2, 2}, at::kBFloat16);
  const auto softmax = [&] { return torch::softmax(half, 1).scalar_type(); };
  {
    const Autocast region(at::kCPU, at::kBFloat16,
                          {.policy = amp::AutocastPolicy::strict(at::kCPU)});
    EXPECT_EQ(custom_fwd(&ctx, at::kCPU, softmax), at::kFloat);
  }
  const Autocast region(at::kCPU, at::kBFloat16);
  EXPECT_EQ(softmax(), at::kBFloat16);
  EXPECT_EQ(custom_bwd(&ctx, softmax), at::kFloat);
  EXPECT_EQ(softmax(), at::kBFloat16);
}

TEST(CustomFunction, RestoresTheStateWhenABodyThrows) {
  const Autocast region(at::kCPU, at::kHalf);
  AutogradContext ctx;
  const auto fail = [] { throw std::runtime_error("inside"); };
  EXPECT_THROW(custom_fwd(&ctx, at::kCPU, at::kFloat, fail), std::runtime_error);
  EXPECT_TRUE(on());
  EXPECT_THROW(custom_bwd(&ctx, fail), std::runtime_error);
  EXPECT_TRUE(on());
  EXPECT_EQ(dtype(), at::kHalf);
}

TEST(CustomFunction, SaysWhatIsWrong) {
  AutogradContext ctx;
  const auto nothing = [] { return 0; };
  expect_contains(error_of([&] { custom_bwd(&ctx, nothing); }), "no record of its forward");
  expect_contains(error_of([&] { custom_fwd(&ctx, at::kMeta, nothing); }),
                  "unsupported autocast device_type 'meta'");
  expect_contains(error_of([&] { custom_fwd(&ctx, at::kCPU, at::kLong, nothing); }),
                  "cast_inputs is Long");
  expect_contains(error_of([&] { custom_fwd(nullptr, at::kCPU, nothing); }), "context is null");
  expect_contains(error_of([&] { custom_bwd(nullptr, nothing); }), "context is null");
}

// The penalty |d loss / d w| of a linear model has a gradient in closed form: with
// g = 2/N X^T (X w - t) and H = 2/N X^T X, that of loss + |g| is g + H g / |g|.
TEST(GradientPenalty, HasTheGradientOfItsFormula) {
  for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    torch::manual_seed(1);
    const auto x = torch::randn({16, 3});
    const auto t = torch::randn({16, 1});
    const auto w = torch::randn({3, 1}).requires_grad_();
    amp::GradScaler scaler({.init_scale = 4096});
    torch::optim::SGD optimizer({w}, torch::optim::SGDOptions(0.0));
    const amp::AutocastOptions options{.enabled = type != at::kFloat};
    const auto low = type == at::kFloat ? at::kBFloat16 : type;
    at::Tensor loss;
    {
      const Autocast region(at::kCPU, low, options);
      loss = torch::mse_loss(torch::mm(x, w), t);
    }
    const auto scaled = torch::autograd::grad({scaler.scale(loss)}, {w}, {},
                                              /*retain_graph=*/true, /*create_graph=*/true)[0];
    const auto gradient = scaled * (1.0 / scaler.get_scale());
    at::Tensor total;
    {
      const Autocast region(at::kCPU, low, options);
      total = loss + gradient.norm();
    }
    scaler.scale(total).backward();
    scaler.unscale_(optimizer);

    const auto x64 = x.to(at::kDouble);
    const auto g = x64.t().mm(x64.mm(w.detach().to(at::kDouble)) - t.to(at::kDouble)) * (2.0 / 16);
    const auto expected = g + x64.t().mm(x64).mm(g) * (2.0 / 16) / g.norm();
    // Five roundings lie on the way of a value, and sums of 16 products after it.
    const double unit = type == at::kFloat ? 0x1p-24 : type == at::kHalf ? 0x1p-11 : 0x1p-8;
    const double error = (w.grad().to(at::kDouble) - expected).abs().max().item<double>();
    EXPECT_LE(error, 16 * unit * expected.abs().max().item<double>()) << type;
    EXPECT_TRUE(scaler.step(optimizer).applied());
  }
}

}  // namespace
}  // namespace torchamp::test
