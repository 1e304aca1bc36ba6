#pragma once
// HalfOp: an op whose float16 calls always take the float32 path. Internal.

#include <utility>

#include "torchamp/ops/op_kernel.h"
#include "torchamp/ops/widened_op.h"

namespace torchamp::ops::detail {

/// Whether the float32 path may take a call of float16 tensors; WidenedCall tells more.
class HalfCall {
 public:
  explicit HalfCall(bool allows_float = false) : call_(allows_float) {}
  template <class... Args>
  bool takes(const Args&... args) {
    return call_.dtype_of(args...) == at::kHalf;
  }

 private:
  WidenedCall call_;
};

inline at::Tensor to_half(const at::Tensor& tensor) { return round_to(at::kHalf, tensor); }
inline void store_half(const at::Tensor& from, const at::Tensor& to) { store_rounded(from, to); }

/// A kernel for the CPU key. `Op` is a struct of at::_ops; its Tensor& arguments are written.
template <class Op, HalfOpRule rule = HalfOpRule{}, class Schema = typename Op::schema>
struct HalfOp;

template <class Op, HalfOpRule rule, class Return, class... Args>
struct HalfOp<Op, rule, Return(Args...)> {
  static inline Before before;

  static Return call(c10::DispatchKeySet keys, Args... args) {
    using Wide = Widened<Op, rule>;
    if (Wide::dtype_of(args...) != at::kHalf) {
      return before.call<Return, Args...>(keys, std::forward<Args>(args)...);
    }
    return Wide::compute(before, at::kHalf, keys, std::forward<Args>(args)...);
  }
};

template <class Op, HalfOpRule rule = HalfOpRule{}>
void add_half_op(OpTable& table, const char* reason, OpTraits traits = {}) {
  table.add<Op, HalfOp<Op, rule>>(kFloat16, reason, traits);
}

}  // namespace torchamp::ops::detail
