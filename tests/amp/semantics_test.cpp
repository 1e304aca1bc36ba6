// What LibTorch's autocast does and a region must keep, rule by rule, where no other test shows it.
// The numbers in the names are those of tests/reference_map.tsv.

#include <string>
#include <utility>
#include <vector>

#include <ATen/autocast_mode.h>
#include <ATen/record_function.h>

#include "amp/support.h"
#include "torchamp/amp/autocast.h"

namespace torchamp::test {
namespace {

using amp::Autocast;

at::Tensor ones(at::ScalarType dtype = at::kFloat) { return torch::ones({2, 2}, dtype); }

TEST(SemanticsA4, AnUnknownDeviceNameIsAnErrorThatListsTheKnownOnes) {
  const auto text = error_of([] { const Autocast region(at::Device("gpu")); });
  expect_contains(text, "Expected one of cpu, cuda");
  expect_contains(text, "gpu");
}

TEST(SemanticsA11, ARegionIsOneLevelOfLibTorchsNesting) {
  const auto depth = [] {
    at::autocast::increment_nesting();
    return at::autocast::decrement_nesting();
  };
  EXPECT_EQ(depth(), 0);
  {
    const Autocast outer(at::kCPU);
    EXPECT_EQ(depth(), 1);
    const Autocast disabled(at::kCPU, {}, {.enabled = false});
    EXPECT_EQ(depth(), 2);
  }
  EXPECT_EQ(depth(), 0);
}

TEST(SemanticsC1, TensorsOfAnotherDeviceTypeAreLeftAlone) {
  const Autocast region(at::kCPU, at::kBFloat16);
  const auto meta = torch::ones({2, 2}, at::TensorOptions().device(at::kMeta));
  EXPECT_EQ(torch::mm(meta, meta).scalar_type(), at::kFloat);
  const Autocast cuda(at::kCUDA, at::kHalf, {.enabled = false});
  EXPECT_EQ(torch::mm(ones(), ones()).scalar_type(), at::kBFloat16);
}

TEST(SemanticsC2, DoubleBesideFloatIsAnErrorThatNamesBothTypes) {
  const Autocast region(at::kCPU, at::kBFloat16);
  expect_contains(error_of([] { torch::mm(ones(at::kDouble), ones()); }),
                  "expected m1 and m2 to have the same dtype, but got: double != c10::BFloat16");
}

TEST(SemanticsC3, OptionalAndListedTensorsAreCastToo) {
  const auto dtype = at::kBFloat16;
  const Autocast region(at::kCPU, dtype);
  // Each of these is an error when one argument keeps float32 beside bf16.
  EXPECT_EQ(at::linear(ones(dtype), ones(dtype), torch::ones({2})).scalar_type(), dtype);
  EXPECT_EQ(
      torch::conv1d(torch::ones({1, 1, 4}, dtype), torch::ones({1, 1, 2}), torch::ones({1}, dtype))
          .scalar_type(),
      dtype);
  EXPECT_EQ(at::linear(ones(), ones(), {}).scalar_type(), dtype);  // an absent one stays absent
  EXPECT_EQ(torch::cat({ones(dtype), ones()}).scalar_type(), at::kFloat);
}

TEST(SemanticsC7, PromotionTakesTheWidestEligibleTypeAndIgnoresDouble) {
  const Autocast region(at::kCPU, at::kBFloat16);
  const auto low = ones(at::kBFloat16);
  EXPECT_EQ(torch::stack({low, low}).scalar_type(), at::kBFloat16);
  EXPECT_EQ(torch::stack({low, ones()}).scalar_type(), at::kFloat);
  // The op itself then promotes to double.
  EXPECT_EQ(torch::cat({low, ones(at::kDouble)}).scalar_type(), at::kDouble);
  const auto index = torch::zeros({1}, at::kLong);
  EXPECT_EQ(torch::index_copy(low, 0, index, torch::ones({1, 2})).scalar_type(), at::kFloat);
  EXPECT_EQ(torch::index_copy(ones(), 0, index, torch::ones({1, 2}, at::kBFloat16)).scalar_type(),
            at::kFloat);
}

TEST(SemanticsC8, InPlaceAndOutFormsAreLeftAlone) {
  const Autocast region(at::kCPU, at::kBFloat16);
  auto out = torch::empty({2, 2});
  torch::mm_out(out, ones(), ones());
  EXPECT_EQ(out.scalar_type(), at::kFloat);
  EXPECT_TRUE(out.eq(2).all().item<bool>());
  auto sum = torch::full({2, 2}, 1.0F + 0x1p-20F);  // more bits than bf16 holds
  sum.addmm_(ones(), ones());
  EXPECT_EQ(sum.scalar_type(), at::kFloat);
  EXPECT_TRUE(sum.eq(3.0F + 0x1p-20F).all().item<bool>());
  expect_contains(error_of([&] { sum.addmm_(ones(at::kBFloat16), ones(at::kBFloat16)); }), "dtype");
}

TEST(SemanticsC13, WithoutACacheEveryRegionCastsForItself) {
  const auto weight = ones().requires_grad_();
  const Autocast outer(at::kCPU, at::kBFloat16);
  EXPECT_EQ(torch::mm(ones(), weight).scalar_type(), at::kBFloat16);
  {
    const Autocast inner(at::kCPU, at::kHalf, {.cache_enabled = false});
    EXPECT_EQ(torch::mm(ones(), weight).scalar_type(), at::kHalf);
    weight.detach().fill_(2);
    EXPECT_EQ(torch::mm(ones(), weight).scalar_type(), at::kHalf);
    EXPECT_TRUE(torch::mm(ones(), weight).eq(4).all().item<bool>());  // no cast is kept
  }
  EXPECT_EQ(torch::mm(ones(), weight).scalar_type(), at::kBFloat16);
}

// RecordFunction shows a listed op twice, with the types that came and with those it runs in; an
// observer that counts work takes the inner one.
std::vector<std::pair<at::ScalarType, at::ScalarType>> seen_mm;

std::unique_ptr<at::ObserverContext> note_mm(const at::RecordFunction& call) {
  if (std::string(call.name()) == "aten::mm") {
    const auto inputs = call.inputs();
    seen_mm.emplace_back(inputs[0].toTensor().scalar_type(), inputs[1].toTensor().scalar_type());
  }
  return nullptr;
}

TEST(SemanticsC19, AnObserverSeesAListedOpWithItsInputsAndAgainWithTheCastOnes) {
  seen_mm.clear();
  const auto handle =
      at::addThreadLocalCallback(at::RecordFunctionCallback(note_mm).needsInputs(true));
  {
    const Autocast region(at::kCPU, at::kBFloat16);
    const torch::NoGradGuard no_grad;
    torch::mm(ones(), ones());
  }
  at::removeCallback(handle);
  ASSERT_EQ(seen_mm.size(), 2U);
  EXPECT_EQ(seen_mm[0], std::pair(at::kFloat, at::kFloat));
  EXPECT_EQ(seen_mm[1], std::pair(at::kBFloat16, at::kBFloat16));
}

}  // namespace
}  // namespace torchamp::test
