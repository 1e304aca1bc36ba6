#pragma once
// ChosenOp: an op whose 16-bit calls take the faster of two ways. Internal.

#include <array>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include "torchamp/ops/choice_table.h"
#include "torchamp/ops/widened_op.h"

namespace torchamp::ops::detail {

/// A kernel for the CPU key. `Wide` is the float32 path: dtype_of(arguments) says whether it may
/// take a call, compute(before, dtype, keys, arguments) takes it. Both must return tensors that do
/// not share memory with arguments, except that an op that writes writes its first argument.
template <class Op, class Wide = Widened<Op>, class Schema = typename Op::schema>
struct ChosenOp;

template <class Op, class Wide, class Return, class... Args>
struct ChosenOp<Op, Wide, Return(Args...)> {
  static inline Before before;

  static Return call(c10::DispatchKeySet keys, Args... args) {
    const at::ScalarType dtype = Wide::dtype_of(args...);
    if (dtype == at::ScalarType::Undefined) return run(Way::kLibTorch, dtype, keys, args...);
    switch (rule_for(dtype)) {
      case Rule::kLibTorch:
        return run(Way::kLibTorch, dtype, keys, args...);
      case Rule::kFloat32:
        return run(Way::kFloat32, dtype, keys, args...);
      case Rule::kChoose:
        break;
    }
    const Choosing choosing;
    const int threads = at::get_num_threads();
    CallHash hash(&before, dtype, threads);
    (hash.add(args), ...);
    if (const std::optional<Way> way = remembered(hash)) return run(*way, dtype, keys, args...);
    return choose_and_run(hash, dtype, threads, keys, args...);
  }

 private:
  static constexpr bool kWrites = std::is_same_v<Return, at::Tensor&>;

  static Return run(Way way, at::ScalarType dtype, c10::DispatchKeySet keys, Args... args) {
    if (way == Way::kFloat32) return Wide::compute(before, dtype, keys, args...);
    return before.template call<Return, Args...>(keys, std::forward<Args>(args)...);
  }

  static Return choose_and_run(const CallHash& hash, at::ScalarType dtype, int threads,
                               c10::DispatchKeySet keys, Args... args) {
    CallText text(dtype);
    (text.add(args), ...);
    std::string name = Op::name;
    if (*Op::overload_name != '\0') name += std::string(".") + Op::overload_name;
    if constexpr (kWrites) {
      const Way way = choose(hash, name, text.finish(threads), [&](Way each) {
        std::tuple<Scratch<Args>...> scratch(scratch_of<Args>(args)...);
        std::apply([&](auto&... all) { run(each, dtype, keys, all...); }, scratch);
      });
      return run(way, dtype, keys, args...);
    } else {
      std::array<std::optional<Return>, 2> results;
      const Way way = choose(hash, name, text.finish(threads), [&](Way each) {
        std::optional<Return>& result = results[static_cast<size_t>(each)];
        result.reset();
        result.emplace(run(each, dtype, keys, args...));
      });
      std::optional<Return>& result = results[static_cast<size_t>(way)];
      return result.has_value() ? *std::move(result) : run(way, dtype, keys, args...);
    }
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
