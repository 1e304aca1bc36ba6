#pragma once
// ChosenOp: an op whose 16-bit calls take the fastest of its ways. Internal.

#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include "torchamp/ops/channels_last.h"
#include "torchamp/ops/choice_table.h"
#include "torchamp/ops/widened_op.h"

namespace torchamp::ops::detail {

/// The way of a call of `Op`, a struct of at::_ops: the one that its arguments took before, else
/// measured. describe(key) adds the arguments that it depends on to a CallHash or a CallText;
/// ways() and measure(way) are asked at the first call only, as choose() has them. Choosing must be
/// under way.
template <class Op, class Describe, class FindWays, class Measure>
Way chosen_way(const Before& before, at::ScalarType dtype, const Describe& describe,
               const FindWays& ways, const Measure& measure) {
  const int threads = at::get_num_threads();
  CallHash hash(&before, dtype, threads);
  describe(hash);
  if (const std::optional<Way> way = remembered(hash)) return *way;
  CallText text(dtype);
  describe(text);
  std::string name = Op::name;
  if (*Op::overload_name != '\0') name += std::string(".") + Op::overload_name;
  return choose(hash, name, text.finish(threads), ways(), measure);
}

/// A kernel for the CPU key. `Wide` is the float32 path: dtype_of(arguments) says whether it may
/// take a call, compute(before, dtype, keys, arguments) takes it. Both must return tensors that do
/// not share memory with arguments, except that an op that writes writes its first argument.
/// `Last` is ChannelsLast<Op> for an op that has these ways, too. Where `Wide` has a function
/// gains_at_any_size(arguments), float32 is tried for those calls however large they are.
template <class Op, class Wide = Widened<Op>, class Last = NoChannelsLast,
          class Schema = typename Op::schema>
struct ChosenOp;

/// Calls whose tensors hold more numbers are not tried in float32, whose copies, twice as large as
/// the tensors, would be the peak of a run's memory. bfloat16 by LibTorch, or in channels_last, is
/// 1.04 to 9 times as fast as float32 there (docs/choices.md names an exception).
inline constexpr int64_t kMostWidened = 1 << 20;

template <class Op, class Wide, class Last, class Return, class... Args>
struct ChosenOp<Op, Wide, Last, Return(Args...)> {
  static inline Before before;

  static Return call(c10::DispatchKeySet keys, Args... args) {
    const at::ScalarType dtype = Wide::dtype_of(args...);
    if (dtype == at::ScalarType::Undefined) return run(Way::kLibTorch, dtype, keys, args...);
    const Rule rule = rule_for(dtype);
    if (!rule.chooses || (!kHasLast && rule.standing == Way::kFloat32)) {
      return run(rule.standing, dtype, keys, args...);
    }
    const Choosing choosing;
    const Way way = chosen_way<Op>(
        before, dtype, [&](auto& key) { (key.add(args), ...); },
        [&] { return ways(rule, args...); },
        [&](Way each) {
          std::tuple<Scratch<Args>...> scratch(scratch_of<Args>(args)...);
          std::apply([&](auto&... all) { run(each, dtype, keys, all...); }, scratch);
        });
    return run(way, dtype, keys, args...);
  }

 private:
  static constexpr bool kWrites = std::is_same_v<Return, at::Tensor&>;
  static constexpr bool kHasLast = !std::is_same_v<Last, NoChannelsLast>;

  static Return run(Way way, at::ScalarType dtype, c10::DispatchKeySet keys, Args... args) {
    const bool is_wide = way == Way::kFloat32 || way == Way::kFloat32ChannelsLast;
    if constexpr (kHasLast) {
      const bool is_last = way == Way::kChannelsLast || way == Way::kFloat32ChannelsLast;
      if (is_last && Last::allows(args...)) {
        return Last::compute(
            [&](const auto&... copies) {
              return run(is_wide ? Way::kFloat32 : Way::kLibTorch, dtype, keys, copies...);
            },
            args...);
      }
    }
    if (is_wide) return Wide::compute(before, dtype, keys, args...);
    return before.template call<Return, Args...>(keys, std::forward<Args>(args)...);
  }

  static Ways ways(const Rule& rule, const std::decay_t<Args>&... args) {
    Ways all = {rule.standing};
    bool may_widen = (count(args) + ... + 0) <= kMostWidened;
    if constexpr (requires { Wide::gains_at_any_size(args...); }) {
      may_widen = may_widen || Wide::gains_at_any_size(args...);
    }
    if (rule.standing == Way::kLibTorch && may_widen) all.push_back(Way::kFloat32);
    if constexpr (kHasLast) {
      if (Last::allows(args...)) {
        const bool widens = all.back() == Way::kFloat32;
        if (rule.standing == Way::kLibTorch) all.push_back(Way::kChannelsLast);
        if (widens) all.push_back(Way::kFloat32ChannelsLast);
      }
    }
    return all;
  }

  static int64_t count(const at::Tensor& tensor) { return tensor.defined() ? tensor.numel() : 0; }
  template <class T>
  static int64_t count(const T& /*no tensor*/) {
    return 0;
  }

  // What is written is copied for a measurement.
  template <class Arg>
  using Scratch =
      std::conditional_t<std::is_same_v<Arg, at::Tensor&>, at::Tensor, const std::decay_t<Arg>&>;
  template <class Arg>
  static Scratch<Arg> scratch_of(const std::decay_t<Arg>& arg) {
    if constexpr (std::is_same_v<Arg, at::Tensor&>) {
      return arg.clone();
    } else {
      return arg;
    }
  }
};

}  // namespace torchamp::ops::detail
