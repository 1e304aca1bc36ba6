// unscale_ and check_finite over lists: every dtype, layout and place of an inf or NaN.

#include "torchamp/multi_tensor/unscale.h"

#include <cstdint>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "torchamp/multi_tensor/scaled_marks.h"
#include "torchamp/multi_tensor/tensor_values.h"

namespace torchamp::test {
namespace {

using multi_tensor::NonFiniteFlags;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

bool found(const NonFiniteFlags& flags) { return flags.sum(at::kCPU).item<float>() != 0.0F; }

TEST(Unscale, DividesEveryFloatingType) {
  for (const auto dtype :
       {at::kHalf, at::kBFloat16, at::kFloat, at::kDouble, at::kComplexFloat, at::kComplexDouble}) {
    const auto x = torch::full({5}, 8, dtype);
    NonFiniteFlags flags;
    multi_tensor::unscale_({x}, torch::full({}, 0.25F), flags);
    EXPECT_TRUE(x.eq(2).all().item<bool>()) << dtype;
    EXPECT_FALSE(found(flags)) << dtype;
  }
}

TEST(Unscale, FindsInfAndNanAtEveryPlaceOfEveryLength) {
  // Lengths around the widths of vector registers (8 and 16 floats) and of an unrolled loop.
  for (const auto dtype : {at::kHalf, at::kBFloat16, at::kFloat, at::kDouble}) {
    for (const int64_t length : {1, 7, 8, 9, 15, 16, 17, 31, 33, 50}) {
      for (const int64_t place : {int64_t{0}, length / 2, length - 1}) {
        for (const double bad : {kInf, -kInf, kNan}) {
          const auto x = torch::ones({length}, dtype);
          x[place] = bad;
          NonFiniteFlags checked;
          multi_tensor::check_finite({torch::ones({3}), x}, checked);
          EXPECT_TRUE(found(checked)) << dtype << ' ' << length << ' ' << place << ' ' << bad;
          NonFiniteFlags unscaled;
          multi_tensor::unscale_({x, torch::ones({3})}, torch::full({}, 0.5F), unscaled);
          EXPECT_TRUE(found(unscaled)) << dtype << ' ' << length << ' ' << place << ' ' << bad;
        }
      }
    }
  }
}

TEST(Unscale, MultipliesTheFiniteOnesAlsoWhenAnInfIsFound) {
  const auto x = torch::tensor({4.0F, static_cast<float>(kInf)});
  NonFiniteFlags flags;
  multi_tensor::unscale_({x}, torch::full({}, 0.5F), flags);
  EXPECT_EQ(x[0].item<float>(), 2.0F);
  EXPECT_EQ(x[1].item<double>(), kInf);
}

TEST(Unscale, NeverResetsAFlag) {
  NonFiniteFlags flags;
  multi_tensor::check_finite({torch::full({1}, kNan)}, flags);
  multi_tensor::check_finite({torch::ones({1})}, flags);
  EXPECT_TRUE(found(flags));
}

TEST(Unscale, KeepsDenormalsAndDoublesBeyondFloat) {
  const auto denormal = torch::full({1}, 0x1p-148F);
  const auto large = torch::full({1}, 1e300, at::kDouble);
  NonFiniteFlags flags;
  multi_tensor::unscale_({denormal, large}, torch::full({}, 0.5F), flags);
  EXPECT_EQ(denormal.item<float>(), 0x1p-149F);
  EXPECT_EQ(large.item<double>(), 5e299);
  EXPECT_FALSE(found(flags));
}

TEST(Unscale, LooksAtTheProductOnRequest) {
  for (const bool check_product : {false, true}) {
    const auto x = torch::full({3}, 1e38F);
    NonFiniteFlags flags;
    multi_tensor::unscale_({x}, torch::full({}, 1024.0F), flags, check_product);
    EXPECT_EQ(found(flags), check_product);
  }
}

TEST(Unscale, TakesNothingAndEmptyAndUndefinedTensors) {
  NonFiniteFlags flags;
  multi_tensor::unscale_({}, torch::ones({}), flags);
  multi_tensor::check_finite({}, flags);
  EXPECT_TRUE(flags.empty());
  multi_tensor::unscale_({at::Tensor(), torch::ones({0, 3})}, torch::ones({}), flags);
  EXPECT_FALSE(flags.empty());
  EXPECT_FALSE(found(flags));
}

TEST(Unscale, TakesStridedTensors) {
  const auto base = torch::full({4, 6}, 8.0F);
  NonFiniteFlags flags;
  multi_tensor::unscale_({base.t(), base.slice(1, 0, 6, 2)}, torch::full({}, 0.5F), flags);
  EXPECT_EQ(base[0][0].item<float>(), 2.0F);  // covered by both
  EXPECT_EQ(base[0][1].item<float>(), 4.0F);
}

TEST(Unscale, TakesTheValuesOfSparseTensors) {
  const auto x = torch::sparse_coo_tensor(torch::tensor({{1, 1}}, at::kLong),
                                          torch::tensor({2.0F, 4.0F}), {3});
  NonFiniteFlags flags;
  multi_tensor::unscale_({x}, torch::full({}, 0.5F), flags);
  EXPECT_FALSE(x.is_coalesced());
  EXPECT_EQ(x.to_dense()[1].item<float>(), 3.0F);
}

TEST(Unscale, WorksOnLeavesThatRequireGrad) {
  const auto x = torch::full({2}, 8.0F).requires_grad_();
  NonFiniteFlags flags;
  multi_tensor::unscale_({x}, torch::full({}, 0.5F), flags);
  EXPECT_TRUE(x.eq(4).all().item<bool>());
}

TEST(Unscale, ChecksAllBeforeItChangesOne) {
  const auto good = torch::full({2}, 8.0F);
  const auto bad = [&](const at::Tensor& x, const std::string& part) {
    NonFiniteFlags flags;
    try {
      multi_tensor::unscale_({good, x}, torch::full({}, 0.5F), flags);
      ADD_FAILURE() << "accepted: " << part;
    } catch (const c10::ValueError& error) {
      EXPECT_NE(std::string(error.what()).find("[unscale_] Tensor 1 " + part), std::string::npos)
          << error.what();
    }
    EXPECT_TRUE(good.eq(8).all().item<bool>());
  };
  bad(torch::ones({2}, at::kLong), "is Long");
  bad(torch::ones({2}, at::kBool), "is Bool");
  bad(torch::ones({2}).to(at::kFloat8_e5m2), "is Float8_e5m2");
  bad(torch::ones({1}).expand({4}), "has elements that share memory");
  bad(torch::ones({2, 2}).to_mkldnn(), "has layout Mkldnn");
  bad(torch::conj(torch::ones({2}, at::kComplexFloat)), "carries a pending conjugate");
}

TEST(Unscale, FactorOneLeavesEveryBit) {
  // A NaN's payload, a negative zero, the smallest and the largest number, the smallest normal one.
  const std::vector<int32_t> bits = {0x7fc01234, INT32_MIN, 1, 0x7f7fffff, 0x00800000};
  const auto x = torch::tensor(bits, at::kInt).view(at::kFloat);
  NonFiniteFlags flags;
  multi_tensor::unscale_({x}, torch::ones({}), flags);
  multi_tensor::check_finite({x}, flags);
  EXPECT_TRUE(x.view(at::kInt).equal(torch::tensor(bits, at::kInt)));
  EXPECT_TRUE(found(flags));
}

TEST(NonFiniteFlags, SumIsATensorOfItsOwn) {
  for (const int devices : {1, 2}) {
    NonFiniteFlags flags;
    flags.on(at::kCPU);
    if (devices == 2) {
      flags.on(at::Device(at::kMeta));
    }
    const auto sum = devices == 1 ? flags.sum(at::kCPU) : flags.sum(at::kMeta);
    EXPECT_FALSE(sum.is_alias_of(flags.on(at::kCPU)));
    sum.add_(1);
    EXPECT_EQ(flags.on(at::kCPU).item<float>(), 0.0F);
  }
}

TEST(ScaledMarks, AreReportedOnceAndForgottenWithTheOwnerAndTheParameter) {
  const auto with_gradient = [] {
    auto p = torch::zeros({1}).requires_grad_();
    p.mutable_grad() = torch::ones({1});
    return p;
  };
  const auto report = [](const at::Tensor& p) {
    return multi_tensor::report_scale_left_in({at::Tensor(), p}).value_or(0.0);
  };
  const auto p = with_gradient();
  const auto q = with_gradient();
  EXPECT_EQ(report(p), 0.0);
  auto first = multi_tensor::ScaledMarks::make();
  auto second = multi_tensor::ScaledMarks::make();
  first->add({p}, torch::full({}, 8.0F));
  second->add({p, q}, torch::full({}, 4.0F));
  second->remove({p});
  EXPECT_EQ(report(p), 8.0);
  EXPECT_EQ(report(p), 0.0);
  EXPECT_TRUE(first->has(p));  // and is still marked
  EXPECT_FALSE(second->has(p));
  q.mutable_grad() = at::Tensor();
  EXPECT_EQ(report(q), 0.0);  // no gradient, nothing in it
  q.mutable_grad() = torch::ones({1});
  second->add({q}, torch::ones({}));
  EXPECT_EQ(report(q), 0.0);  // a factor of 1 is none
  second->add({p, q}, torch::full({}, 2.0F));
  second->clear();
  EXPECT_EQ(report(q), 0.0);
  second->add({q}, torch::full({}, 2.0F));
  second.reset();
  EXPECT_EQ(report(q), 0.0);
}

TEST(AnyNan, TellsNanFromInf) {
  const auto inf = torch::full({2}, kInf);
  EXPECT_FALSE(multi_tensor::any_nan({inf, torch::ones({0})}, at::kCPU).item<bool>());
  EXPECT_TRUE(
      multi_tensor::any_nan({inf, torch::full({2}, kNan, at::kDouble)}, at::kCPU).item<bool>());
  EXPECT_FALSE(multi_tensor::any_nan({}, at::kCPU).item<bool>());
}

TEST(Grouping, KeepsTheOrderWithinAndBetweenGroups) {
  const auto a = torch::ones({1});
  const auto b = torch::ones({1}, at::kDouble);
  const auto c = torch::ones({2});
  const auto groups = multi_tensor::group_by_device_and_dtype({a, at::Tensor(), b, c});
  ASSERT_EQ(groups.size(), 2U);
  EXPECT_EQ(groups[0].dtype, at::kFloat);
  ASSERT_EQ(groups[0].tensors.size(), 2U);
  EXPECT_TRUE(groups[0].tensors[1].is_same(c));
  EXPECT_TRUE(groups[1].tensors[0].is_same(b));
}

}  // namespace
}  // namespace torchamp::test
