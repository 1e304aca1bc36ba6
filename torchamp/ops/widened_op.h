#pragma once
// Widened: any LibTorch op with 16-bit tensors, computed by its float32 kernel and rounded once.
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

/// Whether the float32 path may take a call: some tensor is of a 16-bit dtype, and every other
/// tensor of floats is of the same (or float32, where `allows_float`); all lie in CPU memory with
/// strides. What it may not take, mistakes included, is LibTorch's to compute or refuse.
class WidenedCall {
 public:
  explicit WidenedCall(bool allows_float = false) : allows_float_(allows_float) {}

  /// float16 or bfloat16; Undefined: LibTorch's own kernel takes the call.
  template <class... Args>
  at::ScalarType dtype_of(const Args&... args) {
    (look(args), ...);
    return has_other_ ? at::ScalarType::Undefined : dtype_;
  }

 private:
  void look(const at::Tensor& tensor) {
    if (has_other_ || !tensor.defined()) return;
    const at::ScalarType dtype = tensor.scalar_type();
    if (!is_16_bit(dtype)) {
      has_other_ = (c10::isFloatingType(dtype) && !(allows_float_ && dtype == at::kFloat)) ||
                   c10::isComplexType(dtype) || !is_plain(tensor);
    } else if ((dtype_ != at::ScalarType::Undefined && dtype_ != dtype) || !is_plain(tensor)) {
      has_other_ = true;
    } else {
      dtype_ = dtype;
    }
  }
  void look(const std::optional<at::Tensor>& tensor) {
    if (tensor.has_value()) look(*tensor);
  }
  template <class T>
  void look(const T& /*no_tensor*/) {
    static_assert(!std::is_same_v<T, at::TensorList>, "lists of tensors are not converted");
  }

  static bool is_plain(const at::Tensor& tensor) {
    return tensor.layout() == at::kStrided && tensor.device().is_cpu() && !has_names(tensor);
  }

  bool allows_float_;
  bool has_other_ = false;
  at::ScalarType dtype_ = at::ScalarType::Undefined;
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

/// How an op is widened. Bits of `float_outputs` name outputs that LibTorch keeps in float32 for
/// 16-bit arguments.
struct HalfOpRule {
  unsigned float_outputs = 0;
  bool allows_float = false;
};

/// The float32 path of an op, a struct of at::_ops, for arguments of `dtype`; its Tensor& arguments
/// are written.
template <class Op, HalfOpRule rule = HalfOpRule{}, class Schema = typename Op::schema>
struct Widened;

template <class Op, HalfOpRule rule, class Return, class... Args>
struct Widened<Op, rule, Return(Args...)> {
  static at::ScalarType dtype_of(const std::decay_t<Args>&... args) {
    return WidenedCall(rule.allows_float).dtype_of(args...);
  }

  static Return compute(const Before& before, at::ScalarType dtype, c10::DispatchKeySet keys,
                        Args... args) {
    const KernelsOnly kernels_only;
    return compute(before, dtype, keys, std::index_sequence_for<Args...>(), args...);
  }

 private:
  template <size_t... index>
  static Return compute(const Before& before, at::ScalarType dtype, c10::DispatchKeySet keys,
                        std::index_sequence<index...> /*all*/, Args... args) {
    std::tuple<std::decay_t<Args>...> wide(widened(args)...);
    if constexpr (std::is_same_v<Return, at::Tensor&>) {
      before.call<Return, Args...>(keys, std::get<index>(wide)...);
      at::Tensor* written = nullptr;
      (write_back<Args>(std::get<index>(wide), args, written), ...);
      return *written;
    } else {
      return rounded(dtype, before.call<Return, Args...>(keys, std::get<index>(wide)...));
    }
  }

  template <class Arg, class T>
  static void write_back(const std::decay_t<Arg>& wide, T& arg, at::Tensor*& written) {
    if constexpr (std::is_same_v<Arg, at::Tensor&>) {
      if (arg.sizes() != wide.sizes()) arg.resize_(wide.sizes());  // LibTorch has warned, or not
      store_rounded(wide, arg);
      written = &arg;
    }
  }

  static at::Tensor rounded(at::ScalarType dtype, const at::Tensor& output) {
    return round_to(dtype, output);
  }
  template <class... Tensors>
  static std::tuple<Tensors...> rounded(at::ScalarType dtype,
                                        const std::tuple<Tensors...>& outputs) {
    return [&]<size_t... i>(std::index_sequence<i...>) {
      return std::tuple<Tensors...>(((rule.float_outputs >> i) & 1U) != 0
                                        ? std::get<i>(outputs)
                                        : round_to(dtype, std::get<i>(outputs))...);
    }
    (std::index_sequence_for<Tensors...>());
  }
};

}  // namespace torchamp::ops::detail
