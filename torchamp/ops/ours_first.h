#pragma once
// OursFirst: an op whose calls take TorchAmp's kernel where it can, else another. Internal.

#include <utility>

#include "torchamp/ops/before.h"
#include "torchamp/ops/op_kernel.h"

namespace torchamp::ops::detail {

/// The kernel that an op had before ours.
template <class Op, class Schema = typename Op::schema>
struct BeforeOurs;

template <class Op, class Return, class... Args>
struct BeforeOurs<Op, Return(Args...)> {
  static inline Before before;

  static Return call(c10::DispatchKeySet keys, Args... args) {
    return before.call<Return, Args...>(keys, std::forward<Args>(args)...);
  }
};

/// A kernel for `Op`, a struct of at::_ops. `ours` is a function of the op's arguments that returns
/// the result (its address, where the op returns a reference), or nothing where it does not take
/// the call; then `Rest` does, which has a Before and a call() as OpTable::add() takes them.
template <class Op, auto ours, class Rest = BeforeOurs<Op>, class Schema = typename Op::schema>
struct OursFirst;

template <class Op, auto ours, class Rest, class Return, class... Args>
struct OursFirst<Op, ours, Rest, Return(Args...)> {
  static constexpr Before& before = Rest::before;

  static Return call(c10::DispatchKeySet keys, Args... args) {
    if (auto result = ours(args...)) return *std::move(result);
    return Rest::call(keys, std::forward<Args>(args)...);
  }
};

template <class Op, auto ours, class Rest = BeforeOurs<Op>>
void add_ours_first(OpTable& table, const char* dtypes, const char* reason, OpTraits traits = {}) {
  table.add<Op, OursFirst<Op, ours, Rest>>(dtypes, reason, traits);
}

}  // namespace torchamp::ops::detail
