// The rest of a float32 weight: its bits, what drops it, and how long it lives.

#include "torchamp/optim/master_weights.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "amp/support.h"
#include "torchamp/optim/low_precision.h"
#include "torchamp/optim/split_tensor.h"

namespace torchamp::optim {
namespace {

using detail::find_master;
using detail::master_of;
using test::error_of;
using test::expect_contains;
using torch::kBFloat16;
using torch::kFloat;
using torch::kHalf;
using torch::kInt;
using torch::kShort;

at::Tensor floats_of_bits(const std::vector<int64_t>& bits) {
  return torch::tensor(bits).to(kInt).view(kFloat);
}

at::Tensor as_int(const at::Tensor& floats) { return floats.contiguous().view(kInt); }

// Every kind of float32: random bit patterns, then the ones that are easy to get wrong.
at::Tensor hard_floats() {
  torch::manual_seed(11);
  const at::Tensor random = torch::randint(std::numeric_limits<int32_t>::min(),
                                           std::numeric_limits<int32_t>::max(), {300000}, kInt)
                                .view(kFloat);
  std::vector<int64_t> bits;
  for (int64_t sign : {int64_t{0}, int64_t{0x80000000}}) {
    for (int64_t high :
         {0x0000, 0x0001, 0x007F, 0x0080, 0x3F80, 0x3F81, 0x3F82, 0x7F7E, 0x7F7F, 0x7F80}) {
      for (int64_t low : {0x0000, 0x0001, 0x7FFF, 0x8000, 0x8001, 0xFFFF}) {
        if (high != 0x7F80 || low == 0) bits.push_back(sign | high << 16 | low);
      }
    }
  }
  const at::Tensor some = floats_of_bits(bits);
  return torch::cat({random.masked_select(random.isnan().logical_not()), some});
}

at::Tensor leaf(const at::Tensor& values) { return values.clone().requires_grad_(); }

// ---- bits ----

TEST(MasterWeight, TellsApartTheTwoFloatsThatShareABFloat16AndItsLowHalf) {
  const at::Tensor values = floats_of_bits({0x3F818000, 0x3F828000});
  const at::Tensor parameter = leaf(torch::zeros({2}, kBFloat16));
  const auto master = master_of(parameter);
  master->set(parameter, values);
  const auto* bits = static_cast<const uint16_t*>(parameter.const_data_ptr());
  EXPECT_EQ(bits[0], 0x3F82);
  EXPECT_EQ(bits[1], 0x3F82);
  const at::Tensor exact = as_int(master->to_float(parameter));
  EXPECT_EQ(exact[0].item<int>(), 0x3F818000);
  EXPECT_EQ(exact[1].item<int>(), 0x3F828000);
}

class MasterWeightOf : public ::testing::TestWithParam<at::ScalarType> {};

TEST_P(MasterWeightOf, IsExactBesideTheNearest16BitNumber) {
  const at::Tensor values = hard_floats();
  const at::Tensor parameter = leaf(torch::zeros(values.sizes(), GetParam()));
  const auto master = master_of(parameter);
  master->set(parameter, values);
  EXPECT_TRUE(torch::equal(parameter.view(kShort), values.to(GetParam()).view(kShort)));
  EXPECT_TRUE(torch::equal(as_int(master->to_float(parameter)), as_int(values)));
}

TEST_P(MasterWeightOf, KeepsNan) {
  const at::Tensor values = floats_of_bits({0x7FC00000, 0xFFC00000, 0x7F800001, 0x7FFFFFFF});
  const at::Tensor parameter = leaf(torch::zeros({4}, GetParam()));
  master_of(parameter)->set(parameter, values);
  EXPECT_TRUE(parameter.isnan().all().item<bool>());
  EXPECT_TRUE(full_precision(parameter).isnan().all().item<bool>());
}

TEST_P(MasterWeightOf, BeginsWithTheWeightsOwnValue) {
  const at::Tensor parameter = leaf(hard_floats().to(GetParam()));
  EXPECT_TRUE(torch::equal(as_int(master_of(parameter)->to_float(parameter)),
                           as_int(parameter.detach().to(kFloat))));
}

TEST_P(MasterWeightOf, HasTheSameArraysByKernelsAndByOps) {
  const at::Tensor all = hard_floats();
  for (const int64_t n : {0, 1, 15, 16, 17, 255, 256, 257, 32767, 32769, 100003}) {
    const at::Tensor values = all.narrow(0, 5, n).clone();
    const at::Tensor parameter = leaf(torch::zeros({n}, GetParam()));
    const auto master = master_of(parameter);
    master->set(parameter, values);
    const kernels::Stream stream = master->stream();
    const detail::SplitTensor parts = detail::split_tensor(values, GetParam());
    const auto same = [](const void* a, const at::Tensor& b) {
      return b.nbytes() == 0 || std::memcmp(a, b.const_data_ptr(), b.nbytes()) == 0;
    };
    EXPECT_TRUE(same(stream.data, parts.weight)) << n;
    EXPECT_TRUE(same(stream.rest, parts.rest)) << n;
    if (parts.ties.defined()) {
      EXPECT_TRUE(same(stream.ties, parts.ties)) << n;
    }
    EXPECT_TRUE(torch::equal(detail::join_tensor(parts, GetParam()).view(kInt), values.view(kInt)))
        << n;
  }
}

TEST_P(MasterWeightOf, FollowsTheParametersLayout) {
  torch::manual_seed(3);
  const at::Tensor values = torch::randn({2, 3, 4, 5});
  const std::vector<at::Tensor> parameters = {
      leaf(torch::zeros({2, 3, 4, 5}, GetParam())),
      torch::zeros({2, 3, 4, 5}, GetParam())
          .contiguous(at::MemoryFormat::ChannelsLast)
          .requires_grad_(),
      torch::zeros({5, 4, 3, 2}, GetParam()).permute({3, 2, 1, 0}).detach().requires_grad_(),
      torch::zeros({400}, GetParam())
          .narrow(0, 7, 120)
          .view({2, 3, 4, 5})
          .detach()
          .requires_grad_()};
  for (const at::Tensor& parameter : parameters) {
    master_of(parameter)->set(parameter, values.transpose(2, 3).contiguous().transpose(2, 3));
    const at::Tensor exact = full_precision(parameter);
    EXPECT_TRUE(torch::equal(exact, values));
    EXPECT_EQ(exact.strides(), parameter.strides());
    EXPECT_TRUE(torch::equal(parameter.detach(), values.to(GetParam())));
  }
}

TEST_P(MasterWeightOf, TakesScalarsAndEmptyParameters) {
  const at::Tensor scalar = leaf(torch::zeros({}, GetParam()));
  master_of(scalar)->set(scalar, torch::tensor(0.1));
  EXPECT_EQ(full_precision(scalar).item<float>(), 0.1F);
  const at::Tensor empty = leaf(torch::zeros({0, 3}, GetParam()));
  master_of(empty)->set(empty, torch::zeros({0, 3}));
  EXPECT_EQ(full_precision(empty).sizes(), empty.sizes());
}

INSTANTIATE_TEST_SUITE_P(Every, MasterWeightOf, ::testing::Values(kBFloat16, kHalf),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

// ---- what drops the rest ----

constexpr float kFine = 1.0F + 1.0F / 1024;  // neither a bfloat16 nor near one

struct Fixture {
  explicit Fixture(at::ScalarType dtype = kBFloat16) : parameter(leaf(torch::ones({4}, dtype))) {
    master = master_of(parameter);
    master->set(parameter, torch::full({4}, kFine));
  }
  float value() const { return full_precision(parameter)[0].item<float>(); }
  at::Tensor parameter;
  std::shared_ptr<detail::MasterWeight> master;
};

TEST_P(MasterWeightOf, IsDroppedWhenTheWeightIsOverwritten) {
  Fixture f(GetParam());
  {
    const torch::NoGradGuard no_grad;
    f.parameter.copy_(f.parameter.clone());  // the very same bits, yet it says what it says
  }
  const float rounded = at::Tensor(f.parameter.detach()[0]).item<float>();
  EXPECT_EQ(f.value(), rounded);
  f.master->sync(f.parameter);
  EXPECT_EQ(f.value(), rounded);
}

TEST(MasterWeight, IsKeptThroughAStepThatSaysSo) {
  Fixture f;
  f.parameter.unsafeGetTensorImpl()->bump_version();
  f.master->note_written(f.parameter);
  f.master->sync(f.parameter);
  EXPECT_EQ(f.value(), kFine);
}

TEST(MasterWeight, IsDroppedWhenTheMemoryIsExchanged) {
  Fixture f;
  const auto version = f.parameter._version();
  f.parameter.set_data(torch::full({4}, 2.0F, kBFloat16));
  ASSERT_EQ(f.parameter._version(), version);  // so that only the memory tells
  EXPECT_EQ(f.value(), 2.0F);
  f.master->sync(f.parameter);
  EXPECT_EQ(f.value(), 2.0F);
  EXPECT_EQ(f.master->stream().data, f.parameter.data_ptr());
}

TEST(MasterWeight, FollowsAParameterThatBecomesLarger) {
  Fixture f;
  f.parameter.set_data(torch::full({100000}, 3.0F, kBFloat16));
  f.master->sync(f.parameter);
  f.master->set(f.parameter, torch::full({100000}, kFine));
  EXPECT_TRUE(full_precision(f.parameter).eq(kFine).all().item<bool>());
}

TEST(MasterWeight, SaysThatAChangeOfStridesDropsIt) {
  const at::Tensor parameter = leaf(torch::ones({2, 3, 4, 4}, kBFloat16));
  const auto master = master_of(parameter);
  master->set(parameter, torch::full({2, 3, 4, 4}, kFine));
  parameter.set_data(parameter.contiguous(at::MemoryFormat::ChannelsLast));
  const c10::WarningUtils::WarnAlways always(true);
  test::Warnings warnings;
  master->sync(parameter);
  EXPECT_EQ(warnings.count("Change the memory format before to_low_precision()"), 1);
  EXPECT_TRUE(full_precision(parameter).eq(1.0F).all().item<bool>());
}

TEST(MasterWeight, IsGoneWhileTheParameterHasAnotherDtype) {
  Fixture f;
  f.parameter.set_data(f.parameter.detach().to(kFloat));
  EXPECT_EQ(find_master(f.parameter), nullptr);
  expect_contains(error_of([&] { f.master->sync(f.parameter); }),
                  "Was the module given another dtype after to_low_precision()?");
  f.parameter.set_data(f.parameter.detach().to(kHalf));
  EXPECT_EQ(find_master(f.parameter), nullptr);
  const auto another = master_of(f.parameter);
  EXPECT_NE(another, f.master);
  EXPECT_EQ(find_master(f.parameter), another);
  EXPECT_EQ(f.value(), 1.0F);
}

// ---- finding and life ----

TEST(MasterWeight, IsFoundByEveryHandleOfTheParameter) {
  Fixture f;
  const at::Tensor another_handle = f.parameter;
  EXPECT_EQ(find_master(another_handle), f.master);
  EXPECT_EQ(master_of(another_handle), f.master);
  EXPECT_EQ(find_master(f.parameter.detach()), nullptr);  // another tensor, the same memory
  EXPECT_EQ(find_master(at::Tensor()), nullptr);
}

TEST(MasterWeight, DiesWithItsParameter) {
  auto f = std::make_unique<Fixture>();
  const std::weak_ptr<detail::MasterWeight> watched = f->master;
  const c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> parameter(
      f->parameter.getIntrusivePtr());
  f->master.reset();
  EXPECT_FALSE(watched.expired());
  f.reset();
  EXPECT_TRUE(watched.expired());
  EXPECT_TRUE(parameter.expired());
}

TEST(MasterWeight, DoesNotKeepItsParameterAlive) {
  auto f = std::make_unique<Fixture>();
  const auto master = f->master;
  const c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> parameter(
      f->parameter.getIntrusivePtr());
  f.reset();
  EXPECT_TRUE(parameter.expired());
}

TEST(MasterWeight, IsNotTakenForThatOfANewTensorAtAnOldAddress) {
  std::set<const void*> addresses;
  bool was_reused = false;
  for (int i = 0; i < 100; ++i) {
    const at::Tensor parameter = leaf(torch::ones({4}, kBFloat16));
    EXPECT_EQ(find_master(parameter), nullptr);
    was_reused = !addresses.insert(parameter.unsafeGetTensorImpl()).second || was_reused;
    master_of(parameter);
  }
  EXPECT_TRUE(was_reused);  // else this test shows nothing
}

TEST(MasterWeight, IsOneForAllThreads) {
  const at::Tensor parameter = leaf(torch::ones({1000}, kBFloat16));
  std::vector<std::shared_ptr<detail::MasterWeight>> found(8);
  std::vector<std::thread> threads;
  for (auto& mine : found) {
    threads.emplace_back([&] {
      mine = master_of(parameter);
      for (int i = 0; i < 100; ++i) {
        const at::Tensor own = leaf(torch::ones({4}, kBFloat16));
        const auto master = master_of(own);
        if (find_master(own) != master) mine = nullptr;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  for (const auto& mine : found) EXPECT_EQ(mine, find_master(parameter));
}

TEST(MasterWeight, StaysWithAParameterThatIsFrozenOrThawed) {
  const at::Tensor frozen = torch::ones({4}, kBFloat16);
  const auto master = master_of(frozen);
  EXPECT_FALSE(frozen.requires_grad());
  frozen.requires_grad_(true);
  EXPECT_EQ(find_master(frozen), master);
  frozen.requires_grad_(false);
  EXPECT_EQ(find_master(frozen), master);
}

TEST(MasterWeight, LeavesTheUsersHooksAlone) {
  const at::Tensor parameter = leaf(torch::ones({4}, kBFloat16));
  int before = 0;
  int after = 0;
  parameter.register_hook([&](const at::Tensor&) { ++before; });
  master_of(parameter);
  const unsigned position = parameter.register_hook([&](const at::Tensor&) { ++after; });
  parameter.sum().backward();
  parameter.sum().backward();
  EXPECT_EQ(before, 2);
  EXPECT_EQ(after, 2);
  detail::drop_master(parameter);
  EXPECT_EQ(find_master(parameter), nullptr);
  parameter.remove_hook(position);
  parameter.sum().backward();
  EXPECT_EQ(before, 3);
  EXPECT_EQ(after, 2);
}

TEST(MasterWeight, RefusesWhatCannotHaveOne) {
  const auto refusal = [](const at::Tensor& tensor) {
    return error_of<c10::ValueError>([&] { master_of(tensor); });
  };
  expect_contains(refusal(torch::ones({2})), "A parameter of dtype Float came");
  expect_contains(refusal(at::Tensor()), "An undefined tensor came");
  expect_contains(refusal(torch::ones({4}, kBFloat16).slice(0, 0, 4, 2)), "has gaps or overlaps");
  expect_contains(refusal(torch::ones({1}, kBFloat16).expand({4})), "has gaps or overlaps");
  expect_contains(refusal(torch::ones({4}, kBFloat16).to_sparse()), "is sparse");
  expect_contains(refusal(leaf(torch::ones({4}, kBFloat16)) * 2), "a leaf is accepted");
  at::Tensor inference;
  {
    const c10::InferenceMode mode;
    inference = torch::ones({4}, kBFloat16);
  }
  expect_contains(refusal(inference), "inference mode");
  Fixture f;
  expect_contains(error_of<c10::ValueError>([&] { f.master->set(f.parameter, torch::ones({3})); }),
                  "the same sizes are accepted");
}

}  // namespace
}  // namespace torchamp::optim
