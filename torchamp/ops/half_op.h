#pragma once
// HalfOp: any LibTorch op with float16 tensors, computed by its float32 kernel and rounded once.
// Internal.

#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>

#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "torchamp/ops/before.h"
#include "torchamp/ops/convert.h"

namespace torchamp::ops::detail {

/// Named tensors, which LibTorch 2.15 no longer has.
template <class T>
bool has_names(const T& tensor) {
  if constexpr (requires { tensor.has_names(); }) {
    return tensor.has_names();
  } else {
    return false;
  }
}

/// Whether the float32 path may take a call: some tensor is float16, and every other tensor of
/// floats is so too (or float32, where `allows_float`); all lie in CPU memory with strides. What
/// it may not take, mistakes included, is LibTorch's to compute or refuse.
class HalfCall {
 public:
  explicit HalfCall(bool allows_float = false) : allows_float_(allows_float) {}
  template <class... Args>
  bool takes(const Args&... args) {
    (look(args), ...);
    return has_half_ && !has_other_;
  }

 private:
  void look(const at::Tensor& tensor) {
    if (!tensor.defined()) return;
    const at::ScalarType dtype = tensor.scalar_type();
    const bool is_ours =
        tensor.layout() == at::kStrided && tensor.device().is_cpu() && !has_names(tensor);
    if (dtype == at::kHalf && is_ours) {
      has_half_ = true;
    } else if (!is_ours ||
               (c10::isFloatingType(dtype) && !(allows_float_ && dtype == at::kFloat)) ||
               c10::isComplexType(dtype)) {
      has_other_ = true;
    }
  }
  void look(const std::optional<at::Tensor>& tensor) {
    if (tensor.has_value()) look(*tensor);
  }
  template <class T>
  void look(const T& /*no_tensor*/) {
    static_assert(!std::is_same_v<T, at::TensorList>, "lists of tensors are not converted");
  }

  bool allows_float_;
  bool has_half_ = false;
  bool has_other_ = false;
};

/// While it lives, ops go to their CPU kernels at once: autograd has recorded the op whose kernel
/// we are, and autocast would round what we widened.
class KernelsOnly {
 public:
  KernelsOnly()
      : guard_(c10::autograd_dispatch_keyset_with_ADInplaceOrView |
               c10::DispatchKeySet(c10::DispatchKey::AutocastCPU)) {}

 private:
  c10::impl::ExcludeDispatchKeyGuard guard_;
};

inline at::Tensor widened(const at::Tensor& tensor) { return to_float(tensor); }
inline std::optional<at::Tensor> widened(const std::optional<at::Tensor>& tensor) {
  return tensor.has_value() ? std::optional(to_float(*tensor)) : std::nullopt;
}
template <class T>
T widened(const T& value) {
  return value;
}

/// How HalfOp treats an op. Bits of `float_outputs` name outputs that LibTorch keeps in float32
/// for float16 arguments.
struct HalfOpRule {
  unsigned float_outputs = 0;
  bool allows_float = false;
};

/// A kernel for the CPU key. `Op` is a struct of at::_ops; its Tensor& arguments are written.
template <class Op, HalfOpRule rule = HalfOpRule{}, class Schema = typename Op::schema>
struct HalfOp;

template <class Op, HalfOpRule rule, class Return, class... Args>
struct HalfOp<Op, rule, Return(Args...)> {
  static inline Before before;

  static Return call(c10::DispatchKeySet keys, Args... args) {
    if (!HalfCall(rule.allows_float).takes(args...)) {
      return before.call<Return, Args...>(keys, std::forward<Args>(args)...);
    }
    const KernelsOnly kernels_only;
    return compute(keys, std::index_sequence_for<Args...>(), args...);
  }

 private:
  template <size_t... index>
  static Return compute(c10::DispatchKeySet keys, std::index_sequence<index...> /*all*/,
                        Args... args) {
    std::tuple<std::decay_t<Args>...> wide(widened(args)...);
    if constexpr (std::is_same_v<Return, at::Tensor&>) {
      before.call<Return, Args...>(keys, std::get<index>(wide)...);
      at::Tensor* written = nullptr;
      (write_back<Args>(std::get<index>(wide), args, written), ...);
      return *written;
    } else {
      return rounded(before.call<Return, Args...>(keys, std::get<index>(wide)...));
    }
  }

  template <class Arg, class T>
  static void write_back(const std::decay_t<Arg>& wide, T& arg, at::Tensor*& written) {
    if constexpr (std::is_same_v<Arg, at::Tensor&>) {
      if (arg.sizes() != wide.sizes()) arg.resize_(wide.sizes());  // LibTorch has warned, or not
      store_half(wide, arg);
      written = &arg;
    }
  }

  static at::Tensor rounded(const at::Tensor& output) { return to_half(output); }
  template <class... Tensors>
  static std::tuple<Tensors...> rounded(const std::tuple<Tensors...>& outputs) {
    return [&]<size_t... i>(std::index_sequence<i...>) {
      return std::tuple<Tensors...>(((rule.float_outputs >> i) & 1U) != 0
                                        ? std::get<i>(outputs)
                                        : to_half(std::get<i>(outputs))...);
    }
    (std::index_sequence_for<Tensors...>());
  }
};

}  // namespace torchamp::ops::detail
