// Autocast: the region's state, nesting, exceptions, warnings, threads.

#include "torchamp/amp/autocast.h"

#include <functional>
#include <optional>
#include <stdexcept>
#include <thread>
#include <type_traits>

#include <ATen/ThreadLocalState.h>
#include <ATen/autocast_mode.h>

#include "amp/support.h"
#include "torchamp/amp/policy_kernels.h"
#include "torchamp/amp/region.h"

namespace torchamp::test {
namespace {

using amp::Autocast;
using amp::AutocastState;
using amp::AutocastStateGuard;

static_assert(!std::is_copy_constructible_v<Autocast> && !std::is_move_constructible_v<Autocast>);
static_assert(!std::is_copy_assignable_v<Autocast> && !std::is_move_assignable_v<Autocast>);
static_assert(!std::is_move_constructible_v<AutocastStateGuard>);

bool on(at::DeviceType device = at::kCPU) { return at::autocast::is_autocast_enabled(device); }
at::ScalarType dtype(at::DeviceType device = at::kCPU) {
  return at::autocast::get_autocast_dtype(device);
}
at::ScalarType mm_dtype() {
  return torch::mm(torch::ones({2, 2}), torch::ones({2, 2})).scalar_type();
}

void expect_outside() {
  EXPECT_FALSE(on());
  EXPECT_EQ(dtype(), at::kBFloat16);
  EXPECT_TRUE(at::autocast::is_autocast_cache_enabled());
  EXPECT_FALSE(on(at::kCUDA));
  EXPECT_EQ(dtype(at::kCUDA), at::kHalf);
  // Nesting is back at zero: one more level and back reports 0.
  at::autocast::increment_nesting();
  EXPECT_EQ(at::autocast::decrement_nesting(), 0);
}

TEST(Autocast, IsBFloat16OnCpuAndHalfOnCudaByDefault) {
  expect_outside();
  {
    const Autocast region(at::kCPU);
    EXPECT_TRUE(on());
    EXPECT_TRUE(region.enabled());
    EXPECT_EQ(region.dtype(), at::kBFloat16);
    EXPECT_EQ(mm_dtype(), at::kBFloat16);
  }
  EXPECT_EQ(amp::autocast_settings(at::kCUDA, {}, {.enabled = false}).dtype, at::kHalf);
  expect_outside();
}

TEST(Autocast, TakesTheDefaultDtypeOfEveryDevice) {
  for (const auto device : {at::kCUDA, at::kMPS, at::kXPU, at::kIPU, at::kMTIA, at::kPrivateUse1}) {
    EXPECT_EQ(amp::autocast_settings(device, {}, {.enabled = false}).dtype, at::kHalf) << device;
  }
  for (const auto device : {at::kCPU, at::kXLA, at::kHPU, at::DeviceType::MAIA}) {
    EXPECT_EQ(amp::autocast_settings(device, {}, {.enabled = false}).dtype, at::kBFloat16)
        << device;
  }
}

TEST(Autocast, TakesADeviceWithIndexOrByName) {
  const Autocast region(at::Device("cpu:0"), at::kHalf);
  EXPECT_EQ(mm_dtype(), at::kHalf);
}

TEST(Autocast, InheritsTheDtypeAroundItAtConstruction) {
  const Autocast outer(at::kCPU, at::kHalf);
  const Autocast inner(at::kCPU);
  EXPECT_EQ(inner.dtype(), at::kHalf);
  EXPECT_EQ(mm_dtype(), at::kHalf);
}

TEST(Autocast, NestsWithOtherDtypesAndDisabledRegions) {
  {
    const Autocast outer(at::kCPU, at::kBFloat16);
    {
      const Autocast inner(at::kCPU, at::kHalf);
      EXPECT_EQ(mm_dtype(), at::kHalf);
    }
    EXPECT_EQ(mm_dtype(), at::kBFloat16);
    {
      const Autocast island(at::kCPU, at::kHalf, {.enabled = false});
      EXPECT_FALSE(on());
      EXPECT_EQ(dtype(), at::kHalf);  // set all the same
      EXPECT_EQ(mm_dtype(), at::kFloat);
    }
    EXPECT_TRUE(on());
    EXPECT_EQ(dtype(), at::kBFloat16);
  }
  expect_outside();
}

TEST(Autocast, RestoresWhenAnExceptionPasses) {
  EXPECT_THROW(
      {
        const Autocast outer(at::kCPU, at::kHalf, {.cache_enabled = false});
        const Autocast inner(at::kCPU, at::kBFloat16, {.enabled = false, .cache_enabled = true});
        throw std::runtime_error("inside");
      },
      std::runtime_error);
  expect_outside();
}

TEST(Autocast, CacheFlagIsInheritedOrExplicit) {
  const Autocast outer(at::kCPU, at::kHalf, {.cache_enabled = false});
  EXPECT_FALSE(at::autocast::is_autocast_cache_enabled());
  {
    const Autocast inherits(at::kCPU);
    EXPECT_FALSE(at::autocast::is_autocast_cache_enabled());
    const Autocast is_explicit(at::kCPU, {}, {.cache_enabled = true});
    EXPECT_TRUE(at::autocast::is_autocast_cache_enabled());
  }
  EXPECT_FALSE(at::autocast::is_autocast_cache_enabled());
}

TEST(Autocast, ChangesOnlyItsOwnDevice) {
  const Autocast cpu(at::kCPU, at::kHalf);
  EXPECT_FALSE(on(at::kCUDA));
  EXPECT_EQ(dtype(at::kCUDA), at::kHalf);
  const Autocast xpu(at::kXPU, at::kBFloat16, {.enabled = false});
  EXPECT_EQ(dtype(at::kXPU), at::kBFloat16);
  EXPECT_EQ(dtype(), at::kHalf);
  EXPECT_TRUE(on());
}

TEST(Autocast, OutOfOrderDestructionKeepsTheInnermostLivingState) {
  std::optional<Autocast> a;
  std::optional<Autocast> b;
  std::optional<Autocast> c;
  a.emplace(at::kCPU, at::kHalf, amp::AutocastOptions{.cache_enabled = false});
  b.emplace(at::kCPU, at::kBFloat16);
  c.emplace(at::kCPU, at::kHalf, amp::AutocastOptions{.enabled = false});
  b.reset();
  EXPECT_FALSE(on());  // c is still the innermost
  a.reset();
  EXPECT_FALSE(on());
  EXPECT_EQ(dtype(), at::kHalf);
  c.reset();
  expect_outside();

  a.emplace(at::kCPU, at::kHalf);
  b.emplace(at::kXPU, at::kHalf, amp::AutocastOptions{.enabled = false});  // of another device
  a.reset();
  EXPECT_FALSE(on());
  b.reset();
  expect_outside();
}

TEST(Autocast, UnsupportedDtypeWarnsOnceAndDisables) {
  for (const auto wrong : {at::kFloat, at::kDouble}) {
    const Warnings warnings;
    {
      const Autocast region(at::kCPU, wrong);
      EXPECT_FALSE(region.enabled());
      EXPECT_FALSE(on());
      EXPECT_EQ(mm_dtype(), at::kFloat);
    }
    EXPECT_EQ(warnings.texts(),
              (std::vector<std::string>{
                  "In CPU autocast, but the target dtype is not supported. Disabling autocast.\n"
                  "CPU Autocast only supports dtypes of torch.bfloat16, torch.float16 "
                  "currently."}));
    const Autocast asked_off(at::kCPU, wrong, {.enabled = false});
    EXPECT_EQ(warnings.texts().size(), 1U);
  }
  expect_outside();
}

TEST(Autocast, HoldsAPrivateBackendToTheSameDtypes) {
  const Warnings warnings;
  const amp::detail::DeviceFacts facts{nullptr, nullptr};  // asked for CUDA only
  EXPECT_TRUE(amp::detail::resolve(at::kPrivateUse1, at::kHalf, {}, facts).enabled);
  EXPECT_TRUE(amp::detail::resolve(at::kPrivateUse1, at::kBFloat16, {}, facts).enabled);
  EXPECT_TRUE(warnings.texts().empty());
  EXPECT_FALSE(amp::detail::resolve(at::kPrivateUse1, at::kFloat, {}, facts).enabled);
  EXPECT_EQ(warnings.count("autocast, but the target dtype is not supported"), 1);
}

TEST(Autocast, RefusesADeviceWithoutAutocast) {
  const auto text = error_of([] { const Autocast region(at::kMeta, at::kHalf); });
  expect_contains(text, "User specified an unsupported autocast device_type 'meta'");
  EXPECT_THROW(const Autocast region(at::kVulkan), c10::Error);
  expect_outside();
}

TEST(Autocast, CudaRulesHoldOnEveryMachine) {
  const auto yes = [] { return true; };
  const auto no = [] { return false; };
  const Warnings warnings;
  EXPECT_FALSE(amp::detail::resolve(at::kCUDA, at::kHalf, {}, {no, no}).enabled);
  EXPECT_EQ(warnings.texts(),
            (std::vector<std::string>{
                "CUDA is not available or torch_xla is imported. Disabling autocast."}));
  expect_contains(error_of([&] {
                    amp::detail::resolve(at::kCUDA, at::kBFloat16, {}, {yes, no});
                  }),
                  "Current CUDA Device does not support bfloat16. Please switch dtype to float16.");
  EXPECT_TRUE(amp::detail::resolve(at::kCUDA, at::kBFloat16, {}, {yes, yes}).enabled);
  EXPECT_TRUE(amp::detail::resolve(at::kCUDA, at::kHalf, {}, {yes, no}).enabled);
  EXPECT_TRUE(amp::detail::resolve(at::kCUDA, at::kFloat, {}, {yes, no}).enabled);
  EXPECT_FALSE(
      amp::detail::resolve(at::kCUDA, at::kBFloat16, {.enabled = false}, {no, no}).enabled);
  EXPECT_EQ(warnings.texts().size(), 1U);
}

TEST(Autocast, WrappedCallableRunsInARegionOfItsOwn) {
  std::function<int(int)> self;
  const auto f = amp::autocast(at::kCPU, at::kHalf, [&](int depth) {
    EXPECT_EQ(mm_dtype(), at::kHalf);
    return depth == 0 ? 0 : 1 + self(depth - 1);
  });
  self = f;  // calls may recurse: every call has its own region
  EXPECT_EQ(f(3), 3);
  expect_outside();
  auto throws = amp::autocast(at::kCPU, {}, [] { throw std::runtime_error("inside"); });
  EXPECT_THROW(throws(), std::runtime_error);
  expect_outside();
}

TEST(Autocast, WrappedCallableWarnsWhenWrappedNotWhenCalled) {
  const Warnings warnings;
  auto f = amp::autocast(at::kCPU, at::kDouble, [] { return mm_dtype(); });
  EXPECT_EQ(warnings.texts().size(), 1U);
  EXPECT_EQ(f(), at::kFloat);
  EXPECT_EQ(f(), at::kFloat);
  EXPECT_EQ(warnings.texts().size(), 1U);
}

TEST(Autocast, WrappedCallableTakesTheDtypeOfItsWrapping) {
  std::optional<Autocast> region(std::in_place, at::kCPU, at::kHalf);
  auto f = amp::autocast(at::kCPU, {}, [] { return mm_dtype(); });
  region.reset();
  EXPECT_EQ(f(), at::kHalf);
}

TEST(AutocastThreads, DoNotInheritTheRegion) {
  const Autocast region(at::kCPU, at::kHalf);
  std::thread([] {
    expect_outside();
    EXPECT_EQ(mm_dtype(), at::kFloat);
    const Autocast disabled(at::kCPU, {}, {.enabled = false});
  }).join();
  EXPECT_TRUE(on());
  EXPECT_EQ(mm_dtype(), at::kHalf);
}

TEST(AutocastThreads, CarryACapturedState) {
  const Autocast region(at::kCPU, at::kHalf, {.cache_enabled = false});
  const auto state = AutocastState::capture();
  std::thread([&] {
    {
      const AutocastStateGuard guard(state);
      EXPECT_EQ(mm_dtype(), at::kHalf);
      EXPECT_FALSE(at::autocast::is_autocast_cache_enabled());
      {
        const Autocast inner(at::kCPU, at::kBFloat16);
        EXPECT_EQ(mm_dtype(), at::kBFloat16);
      }
      EXPECT_EQ(mm_dtype(), at::kHalf);
    }
    expect_outside();
  }).join();
}

TEST(AutocastThreads, AreReachedByLibTorchsThreadLocalStateToo) {
  const Autocast region(at::kCPU, at::kHalf, {.cache_enabled = false});
  const at::ThreadLocalState state;
  std::thread([&] {
    {
      const at::ThreadLocalStateGuard guard(state);
      EXPECT_EQ(mm_dtype(), at::kHalf);
      EXPECT_TRUE(at::autocast::is_autocast_cache_enabled());  // only AutocastState carries this
      {
        const Autocast inner(at::kCPU, at::kBFloat16);
        EXPECT_EQ(mm_dtype(), at::kBFloat16);
      }
      EXPECT_EQ(mm_dtype(), at::kHalf);
    }
    expect_outside();
  }).join();
}

TEST(AutocastThreads, ARegionsEndLeavesOtherThreadsCastsAlone) {
  const auto weight = torch::ones({1, 1}).requires_grad_();
  const Autocast region(at::kCPU);
  torch::mm(torch::ones({1, 1}), weight);
  const size_t kept = amp::detail::num_kept_casts();
  EXPECT_GT(kept, 0U);
  std::thread([&] {
    const Autocast other(at::kCPU, at::kHalf);
    EXPECT_EQ(torch::mm(torch::ones({1, 1}), weight).scalar_type(), at::kHalf);
  }).join();
  EXPECT_EQ(amp::detail::num_kept_casts(), kept);
  EXPECT_EQ(torch::mm(torch::ones({1, 1}), weight).scalar_type(), at::kBFloat16);
}

TEST(AutocastThreads, CapturedStateDropsItsCastsAtTheEnd) {
  const auto weight = torch::ones({1, 1}).requires_grad_();
  const auto x = torch::ones({1, 1});
  std::optional<Autocast> region(std::in_place, at::kCPU, at::kBFloat16);
  const auto state = AutocastState::capture();
  region.reset();
  for (const float expected : {1.0F, 5.0F}) {
    const AutocastStateGuard guard(state);
    EXPECT_EQ(torch::mm(x, weight).item<float>(), expected);
    weight.detach().fill_(5);
  }
}

TEST(AutocastThreads, DestructionOnAnotherThreadChangesNothingThere) {
  auto region = std::make_unique<Autocast>(at::kCPU, at::kHalf);
  std::thread([&] {
    const Warnings warnings;
    const Autocast mine(at::kCPU, at::kBFloat16);
    region.reset();
    EXPECT_EQ(warnings.count("destroyed on another thread"), 1);
    EXPECT_EQ(mm_dtype(), at::kBFloat16);
  }).join();
  { const Autocast next(at::kCPU); }  // the owner opens a region: the abandoned one is over
  expect_outside();
}

}  // namespace
}  // namespace torchamp::test
