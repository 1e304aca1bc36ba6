// AutocastPolicy: rules on top of LibTorch's, their kernels' coming and going, and fp32 islands.

#include <algorithm>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include "amp/support.h"
#include "torchamp/amp/autocast.h"
#include "torchamp/amp/fp32_island.h"
#include "torchamp/amp/op_rules.h"
#include "torchamp/amp/policy_kernels.h"

namespace torchamp::test {
namespace {

using amp::Autocast;
using amp::AutocastPolicy;
using amp::OpRule;

at::Tensor half_logits() { return torch::ones({2, 4}, at::kBFloat16); }

at::ScalarType softmax_dtype() { return at::softmax(half_logits(), 1).scalar_type(); }
at::ScalarType mm_dtype() {
  return torch::mm(torch::ones({2, 2}), torch::ones({2, 2})).scalar_type();
}

bool has_kernel(const char* name, const char* overload) {
  return c10::Dispatcher::singleton()
      .findSchemaOrThrow(name, overload)
      .hasKernelForDispatchKey(c10::DispatchKey::AutocastCPU);
}

TEST(AutocastPolicy, KnowsTheRuleOfEveryRegisteredCpuOp) {
  const auto rules = AutocastPolicy::libtorch(at::kCPU).rules();
  EXPECT_GE(rules.size(), 126U);  // 129 on 2.11
  for (const auto& [name, rule] : rules) {
    EXPECT_NE(rule, OpRule::kUnknown) << name;
  }
  EXPECT_EQ(AutocastPolicy::libtorch(at::kCPU).rule("mm"), OpRule::kLowerPrecision);
  EXPECT_EQ(AutocastPolicy::libtorch(at::kCPU).rule("aten::cat"), OpRule::kPromote);
  EXPECT_EQ(AutocastPolicy::libtorch(at::kCPU).rule("mse_loss"), OpRule::kFp32);
  EXPECT_EQ(AutocastPolicy::libtorch(at::kCPU).rule("relu"), OpRule::kFallThrough);
  EXPECT_EQ(AutocastPolicy::libtorch(at::kCUDA).rule("softmax.int"), OpRule::kFp32SetOptDtype);
  EXPECT_EQ(AutocastPolicy::libtorch(at::kCUDA).rule("binary_cross_entropy"), OpRule::kBanned);
}

// semantics.md 2.1 to 2.3 gives how many there are of each; the running library decides.
TEST(AutocastPolicy, KnowsTheRuleOfEveryRegisteredCudaOpButOne) {
  std::set<std::string> unknown;
  for (const auto& [name, rule] : AutocastPolicy::libtorch(at::kCUDA).rules()) {
    if (rule == OpRule::kUnknown) {
      unknown.insert(name);
    }
  }
  unknown.erase("linalg_matrix_sqrth");
  EXPECT_TRUE(unknown.empty()) << *unknown.begin();
}

TEST(AutocastPolicy, StrictHasTheRulesOfCudaOnCpu) {
  const auto strict = AutocastPolicy::strict(at::kCPU);
  const auto x = half_logits().requires_grad_();
  const auto weight = torch::ones({4});
  const Autocast region(at::kCPU, at::kBFloat16, {.policy = strict});
  for (const auto& [name, y] : std::initializer_list<std::pair<const char*, at::Tensor>>{
           {"softmax", at::softmax(x, 1)},
           {"log_softmax", at::log_softmax(x, 1)},
           {"layer_norm", at::layer_norm(x, {4}, weight, weight)},
           {"group_norm", at::group_norm(x.view({1, 4, 2}), 2)},
           {"sum", at::sum(x)},
           {"sum dim", at::sum(x, {1})},
           {"prod", at::prod(x)},
           {"cumsum", at::cumsum(x, 1)},
           {"exp", at::exp(x)},
           {"log", at::log(x)},
           {"pow", at::pow(x, 2)},
           {"norm", at::norm(x, 2)},
           {"norm dim", at::norm(x, 2, {1})},
           {"mse_loss", at::mse_loss(x, x)},
           {"l1_loss", at::l1_loss(x, x)},
           {"logsumexp", at::logsumexp(x, {1})}}) {
    EXPECT_EQ(y.scalar_type(), at::kFloat) << name;
    y.sum().backward();
    ASSERT_TRUE(x.grad().defined()) << name;
    EXPECT_EQ(x.grad().scalar_type(), at::kBFloat16) << name;
    x.mutable_grad() = at::Tensor();
  }
  // Asked for a type, these obey; what only CPU lists stays.
  EXPECT_EQ(at::softmax(x, 1, at::kHalf).scalar_type(), at::kHalf);
  EXPECT_EQ(at::mm(torch::ones({2, 2}), torch::ones({2, 2})).scalar_type(), at::kBFloat16);
  EXPECT_EQ(at::binary_cross_entropy(at::sigmoid(x), x.detach()).scalar_type(), at::kFloat);
  EXPECT_EQ(at::gelu(x).scalar_type(), at::kBFloat16);
}

TEST(AutocastPolicy, ChangesAreValuesOnTopOfAPreset) {
  const auto start = AutocastPolicy::libtorch(at::kCPU);
  const auto changed = start.fp32("softmax").deny("mm").allow("mse_loss").promote("add.Tensor");
  EXPECT_EQ(start.rule("mm"), OpRule::kLowerPrecision);
  EXPECT_EQ(changed.rule("mm"), OpRule::kDeny);
  EXPECT_EQ(changed.rule("softmax.int"), OpRule::kFp32);
  const Autocast region(at::kCPU, at::kBFloat16, {.policy = changed});
  EXPECT_EQ(softmax_dtype(), at::kFloat);
  EXPECT_EQ(mm_dtype(), at::kFloat);
  EXPECT_EQ(at::mse_loss(torch::ones({2}), torch::ones({2})).scalar_type(), at::kBFloat16);
  EXPECT_EQ((half_logits() + half_logits()).scalar_type(), at::kBFloat16);
  EXPECT_EQ((half_logits() + torch::ones({2, 4})).scalar_type(), at::kFloat);
}

TEST(AutocastPolicy, DenyHoldsForWhatTheOpConsistsOf) {
  const auto x = torch::ones({2, 3, 4});
  const auto weight = torch::ones({5, 4});
  {
    const Autocast region(at::kCPU, at::kBFloat16);
    EXPECT_EQ(at::linear(x, weight).scalar_type(), at::kBFloat16);
  }
  const Autocast region(at::kCPU, at::kBFloat16,
                        {.policy = AutocastPolicy::libtorch(at::kCPU).deny("linear")});
  EXPECT_EQ(at::linear(x, weight).scalar_type(), at::kFloat);
  expect_contains(error_of([&] { at::linear(x.to(at::kBFloat16), weight); }), "dtype");
}

TEST(AutocastPolicy, CastsNeitherDoubleNorIntegers) {
  const Autocast region(at::kCPU, at::kBFloat16,
                        {.policy = AutocastPolicy::libtorch(at::kCPU).fp32("add").allow("mul")});
  const auto twice = torch::ones({2}, at::kDouble);
  EXPECT_EQ((twice + twice).scalar_type(), at::kDouble);
  EXPECT_EQ((twice * twice).scalar_type(), at::kDouble);
  const auto whole = torch::ones({2}, at::kLong);
  EXPECT_EQ((whole * whole).scalar_type(), at::kLong);
  const auto complex = torch::ones({2}, at::kComplexFloat);
  EXPECT_EQ((complex * complex).scalar_type(), at::kComplexFloat);
}

TEST(AutocastPolicy, CastsTensorsInListsAndOptionals) {
  const Autocast region(
      at::kCPU, at::kBFloat16,
      {.policy =
           AutocastPolicy::libtorch(at::kCPU).allow("cat").fp32("batch_norm").fp32("index_put")});
  EXPECT_EQ(at::cat({torch::ones({2}), torch::ones({2})}).scalar_type(), at::kBFloat16);
  const auto x = torch::ones({4, 2}, at::kBFloat16);
  EXPECT_EQ(at::batch_norm(x, {}, {}, {}, {}, true, 0.1, 1e-5, false).scalar_type(), at::kFloat);
  EXPECT_EQ(at::index_put(x, {torch::zeros({1}, at::kLong)}, torch::ones({2})).scalar_type(),
            at::kFloat);
}

TEST(AutocastPolicy, HoldsInItsRegionAndThoseInsideOnThisThread) {
  const auto policy = AutocastPolicy::libtorch(at::kCPU).fp32("softmax");
  EXPECT_EQ(softmax_dtype(), at::kBFloat16);
  {
    const Autocast region(at::kCPU, at::kBFloat16, {.policy = policy});
    EXPECT_EQ(softmax_dtype(), at::kFloat);
    {
      const Autocast inner(at::kCPU, at::kHalf);
      EXPECT_EQ(softmax_dtype(), at::kFloat);
      const Autocast plain(at::kCPU, at::kHalf, {.policy = AutocastPolicy::libtorch(at::kCPU)});
      EXPECT_EQ(softmax_dtype(), at::kBFloat16);
    }
    EXPECT_EQ(softmax_dtype(), at::kFloat);
    {
      const Autocast off(at::kCPU, {}, {.enabled = false});
      EXPECT_EQ(softmax_dtype(), at::kBFloat16);
      const Autocast on(at::kCPU, at::kBFloat16);
      EXPECT_EQ(softmax_dtype(), at::kFloat);
    }
    std::thread([] {
      const Autocast other(at::kCPU, at::kBFloat16);
      EXPECT_EQ(softmax_dtype(), at::kBFloat16);
    }).join();
    const auto state = amp::AutocastState::capture();
    std::thread([&state] {
      const amp::AutocastStateGuard guard(state);
      EXPECT_EQ(softmax_dtype(), at::kFloat);
    }).join();
  }
  const Autocast region(at::kCPU, at::kBFloat16);
  EXPECT_EQ(softmax_dtype(), at::kBFloat16);
}

TEST(AutocastPolicy, LibTorchsOwnSwitchKeepsLibTorchsRules) {
  const auto policy = AutocastPolicy::libtorch(at::kCPU).fp32("softmax").deny("mm");
  at::autocast::set_autocast_enabled(at::kCPU, true);
  at::autocast::increment_nesting();
  EXPECT_EQ(softmax_dtype(), at::kBFloat16);
  EXPECT_EQ(mm_dtype(), at::kBFloat16);
  at::autocast::decrement_nesting();
  at::autocast::set_autocast_enabled(at::kCPU, false);
  at::autocast::clear_cache();
}

TEST(AutocastPolicy, RegistersSilentlyAndLeavesWithItsLastUser) {
  EXPECT_FALSE(has_kernel("aten::selu", ""));
  ::testing::internal::CaptureStderr();
  {
    std::optional<AutocastPolicy> policy = AutocastPolicy::libtorch(at::kCPU).fp32("selu");
    const AutocastPolicy copy = policy->deny("mm");
    policy.reset();
    EXPECT_TRUE(has_kernel("aten::selu", ""));
    const Autocast region(at::kCPU, at::kBFloat16, {.policy = copy});
    EXPECT_EQ(at::selu(half_logits()).scalar_type(), at::kFloat);
  }
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  EXPECT_FALSE(has_kernel("aten::selu", ""));
  const Autocast region(at::kCPU, at::kBFloat16);
  EXPECT_EQ(at::selu(half_logits()).scalar_type(), at::kBFloat16);
  EXPECT_EQ(mm_dtype(), at::kBFloat16);
}

TEST(AutocastPolicy, RegionKeepsItsPolicyAlive) {
  std::optional<Autocast> region(
      std::in_place, at::kCPU, at::kBFloat16,
      amp::AutocastOptions{.policy = AutocastPolicy::libtorch(at::kCPU).fp32("elu")});
  EXPECT_EQ(at::elu(half_logits()).scalar_type(), at::kFloat);
  region.reset();
  EXPECT_FALSE(has_kernel("aten::elu", ""));
}

TEST(AutocastPolicy, NoneIsLibTorchsKernelsAndCache) {
  const auto weight = torch::ones({1, 1}).requires_grad_();
  const Autocast region(at::kCPU, at::kBFloat16, {.policy = AutocastPolicy::none()});
  const auto forward = [&] { return torch::mm(torch::ones({1, 1}), weight).item<float>(); };
  EXPECT_EQ(forward(), 1.0F);
  EXPECT_EQ(amp::detail::num_kept_casts(), 0U);
  weight.detach().fill_(5);
  EXPECT_EQ(forward(), 1.0F);  // LibTorch's cache does not look (semantics.md C14)
  amp::clear_autocast_cache();
  EXPECT_EQ(forward(), 5.0F);
  const Autocast inner(at::kCPU, at::kBFloat16);  // names none: has that of the region around it
  forward();
  EXPECT_EQ(amp::detail::num_kept_casts(), 0U);
}

// Another library's kernel on the autocast key, registered before ours, is what ours falls back to.
TEST(AutocastPolicy, FallsBackToOtherLibrariesKernels) {
  static int calls = 0;
  Warnings quiet;
  auto library = torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::AutocastCPU,
                                __FILE__, __LINE__);
  library.impl("celu", [](const at::Tensor& x, const at::Scalar&) {
    ++calls;
    return x.clone();
  });
  const auto policy = AutocastPolicy::libtorch(at::kCPU).fp32("celu");
  {
    const Autocast region(at::kCPU, at::kBFloat16);
    at::celu(half_logits());
    EXPECT_EQ(calls, 1);
  }
  const Autocast region(at::kCPU, at::kBFloat16, {.policy = policy});
  EXPECT_EQ(at::celu(half_logits()).scalar_type(), at::kFloat);
  EXPECT_EQ(calls, 1);
}

TEST(AutocastPolicy, RefusesWhatCannotWork) {
  const auto policy = AutocastPolicy::libtorch(at::kCPU);
  const auto error = [&](const char* op) {
    return error_of<c10::ValueError>([&] { static_cast<void>(policy.fp32(op)); });
  };
  expect_contains(error("sofmax"), "no op named 'sofmax'; did you mean 'softmax'");
  expect_contains(error("softmax.dim"), "did you mean");
  expect_contains(error("conv2"), "'conv2d'");
  expect_contains(error("mm.out"), "writes to its arguments");
  expect_contains(error("add_"), "writes to its arguments");
  expect_contains(error("view"), "returns views");
  expect_contains(error(""), "no op named ''");
  expect_contains(error("a b::c.d.e"), "no op named");
  expect_contains(
      error_of<c10::ValueError>([] { static_cast<void>(AutocastPolicy::none().deny("mm")); }),
      "none()");
  expect_contains(error_of<c10::ValueError>([] {
                    const Autocast region(at::kCPU, {},
                                          {.policy = AutocastPolicy::libtorch(at::kCUDA)});
                  }),
                  "The policy is one for cuda, but the region is for cpu");
  expect_contains(error_of<c10::ValueError>([&] { policy.fp32("pow.Scalar").rule("pow"); }),
                  "name one of");
}

struct Net : torch::nn::Module {
  Net() {
    body = register_module("body", torch::nn::Linear(4, 4));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({4})));
    head = register_module("head", torch::nn::Sequential(torch::nn::Linear(4, 4), torch::nn::ReLU(),
                                                         torch::nn::Linear(4, 2)));
  }
  torch::nn::Linear body{nullptr};
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Sequential head{nullptr};
};

TEST(AutocastPolicyModules, NamedOnesRunInFloat32) {
  Net net;
  const auto x = torch::ones({2, 4});
  const auto policy =
      AutocastPolicy::libtorch(at::kCPU).fp32_modules(net, "head.*").fp32_modules(net, "norm");
  const Autocast region(at::kCPU, at::kBFloat16, {.policy = policy});
  const auto h = net.body(x);
  EXPECT_EQ(h.scalar_type(), at::kBFloat16);
  EXPECT_EQ(net.norm(h).scalar_type(), at::kFloat);
  const auto y = net.head->forward(h);
  EXPECT_EQ(y.scalar_type(), at::kFloat);
  // The same as by hand: the island sees the 16-bit activation in float32.
  at::Tensor expected;
  {
    const Autocast off(at::kCPU, {}, {.enabled = false});
    expected = net.head->forward(h.to(at::kFloat));
  }
  EXPECT_TRUE(at::equal(y, expected));
  y.sum().backward();
  for (const auto& parameter : net.parameters()) {
    if (parameter.grad().defined()) {
      EXPECT_EQ(parameter.grad().scalar_type(), at::kFloat);
    }
  }
  EXPECT_TRUE(net.body->weight.grad().defined());
  EXPECT_EQ(net.body(x).scalar_type(), at::kBFloat16);  // after the island, too
}

TEST(AutocastPolicyModules, RecurrentAndConvolutionModulesWork) {
  struct Many : torch::nn::Module {
    Many() {
      lstm = register_module("lstm", torch::nn::LSTM(3, 5));
      conv = register_module("conv", torch::nn::Conv1d(3, 4, 1));
      embedding = register_module("embedding", torch::nn::Embedding(7, 3));
      bn = register_module("bn", torch::nn::BatchNorm1d(4));
    }
    torch::nn::LSTM lstm{nullptr};
    torch::nn::Conv1d conv{nullptr};
    torch::nn::Embedding embedding{nullptr};
    torch::nn::BatchNorm1d bn{nullptr};
  } net;
  const auto x = torch::ones({2, 3, 3}, at::kBFloat16);
  const Autocast region(at::kCPU, at::kBFloat16,
                        {.policy = AutocastPolicy::strict(at::kCPU).fp32_modules(net, "*")});
  EXPECT_EQ(std::get<0>(net.lstm(x)).scalar_type(), at::kFloat);
  const auto y = net.conv(x);
  EXPECT_EQ(y.scalar_type(), at::kFloat);
  EXPECT_EQ(net.bn(y.to(at::kBFloat16)).scalar_type(), at::kFloat);
  EXPECT_EQ(net.embedding(torch::zeros({2}, at::kLong)).scalar_type(), at::kFloat);
}

TEST(AutocastPolicyModules, AreKnownInInferenceModeToo) {
  const c10::InferenceMode inference;
  const auto options = torch::nn::LinearOptions(2, 2).bias(false);
  torch::nn::Sequential model((torch::nn::Linear(options)), torch::nn::Linear(options));
  const auto policy = AutocastPolicy::libtorch(at::kCPU).fp32_modules(*model, "0");
  const Autocast region(at::kCPU, at::kBFloat16, {.policy = policy});
  const auto x = torch::ones({1, 2});
  EXPECT_EQ(model[0]->as<torch::nn::Linear>()->forward(x).scalar_type(), at::kFloat);
  EXPECT_EQ(model[1]->as<torch::nn::Linear>()->forward(x).scalar_type(), at::kBFloat16);
}

struct Transposing : torch::nn::Module {
  explicit Transposing(const at::Tensor& memory) : weight(register_parameter("weight", memory)) {}
  at::Tensor weight;
};

TEST(AutocastPolicyModules, AreToldApartInOneBuffer) {
  const auto buffer = torch::ones({8});
  const auto a = std::make_shared<Transposing>(buffer.narrow(0, 0, 4).view({2, 2}));
  const auto b = std::make_shared<Transposing>(buffer.narrow(0, 4, 4).view({2, 2}));
  torch::nn::Module model;
  model.register_module("a", a);
  model.register_module("b", b);
  const auto policy = AutocastPolicy::libtorch(at::kCPU).fp32_modules(model, "a");
  const Autocast region(at::kCPU, at::kBFloat16, {.policy = policy});
  const auto x = torch::ones({1, 2});
  EXPECT_EQ(torch::mm(x, a->weight).scalar_type(), at::kFloat);
  EXPECT_EQ(torch::mm(x, a->weight.t()).scalar_type(), at::kFloat);
  EXPECT_EQ(torch::mm(x, b->weight).scalar_type(), at::kBFloat16);
  EXPECT_EQ(torch::mm(x, b->weight.t()).scalar_type(), at::kBFloat16);
}

TEST(Fp32Island, RunsACallInFloat32) {
  Net net;
  const auto x = torch::ones({2, 4});
  const Autocast region(at::kCPU, at::kBFloat16);
  const auto h = net.body(x);
  const auto y = amp::fp32_island(
      at::kCPU, [&](const at::Tensor& input) { return net.head->forward(input); }, h);
  EXPECT_EQ(y.scalar_type(), at::kFloat);
  EXPECT_TRUE(at::equal(y, [&] {
    const Autocast off(at::kCPU, {}, {.enabled = false});
    return net.head->forward(h.to(at::kFloat));
  }()));
  y.sum().backward();
  EXPECT_TRUE(net.body->weight.grad().defined());
  EXPECT_EQ(net.body(x).scalar_type(), at::kBFloat16);
}

TEST(Fp32Island, CastsTensorsInContainersAndLeavesTheRest) {
  const Autocast region(at::kCPU, at::kHalf);
  amp::fp32_island(
      at::kCPU,
      [](const std::vector<at::Tensor>& tensors, const std::optional<at::Tensor>& none, int n) {
        EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
        EXPECT_EQ(tensors.at(0).scalar_type(), at::kFloat);
        EXPECT_EQ(tensors.at(1).scalar_type(), at::kLong);
        EXPECT_EQ(tensors.at(2).scalar_type(), at::kDouble);
        EXPECT_FALSE(none.has_value());
        EXPECT_EQ(n, 3);
      },
      std::vector<at::Tensor>{torch::ones({1}, at::kHalf), torch::ones({1}, at::kLong),
                              torch::ones({1}, at::kDouble)},
      std::optional<at::Tensor>(), 3);
  EXPECT_TRUE(at::autocast::is_autocast_enabled(at::kCPU));
}

TEST(Fp32Island, AnExceptionLeavesTheRegionAsItWas) {
  const Autocast region(at::kCPU, at::kHalf);
  EXPECT_THROW(amp::fp32_island(at::kCPU, [] { throw std::runtime_error("in the island"); }),
               std::runtime_error);
  EXPECT_EQ(mm_dtype(), at::kHalf);
}

TEST(AutocastPolicyModules, RefusesAPatternThatMatchesNothing) {
  const Net net;
  const auto policy = AutocastPolicy::libtorch(at::kCPU);
  expect_contains(
      error_of<c10::ValueError>([&] { static_cast<void>(policy.fp32_modules(net, "haed")); }),
      "No submodule's path matches 'haed'; did you mean 'head'");
}

}  // namespace
}  // namespace torchamp::test
