#pragma once
// The tensors inside of a value: a tensor, and standard containers of them, at any depth. Internal:
// custom_function.h and activation_checkpoint.h are its users.

#include <array>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

namespace torchamp::amp::detail {

/// What has to be kept of a value that outlives the call: itself, or an owner of what it refers to.
template <typename T>
struct Owner {
  using type = T;
};
template <typename T>
struct Owner<c10::ArrayRef<T>> {
  using type = std::vector<T>;
};
template <>
struct Owner<std::string_view> {
  using type = std::string;
};
template <typename T>
using Owned = typename Owner<std::decay_t<T>>::type;

/// `own(value)` copies or moves `value` into its owner.
template <typename T>
Owned<T> own(T&& value) {
  if constexpr (std::is_same_v<Owned<T>, std::decay_t<T>>) {
    return std::forward<T>(value);
  } else {
    return Owned<T>(value.begin(), value.end());
  }
}

/// Whether a T can hold tensors, and a visit of each of them in a fixed order.
template <typename T>
struct TensorsIn {
  static constexpr bool kAny = false;
  template <typename F>
  static void visit(T& /*value*/, F& /*f*/) {}
};

template <>
struct TensorsIn<at::Tensor> {
  static constexpr bool kAny = true;
  template <typename F>
  static void visit(at::Tensor& value, F& f) {
    f(value);
  }
};

/// Calls `f(at::Tensor&)` on each tensor inside of `value`.
template <typename T, typename F>
void visit_tensors(T& value, F& f) {
  if constexpr (TensorsIn<T>::kAny) {
    TensorsIn<T>::visit(value, f);
  }
}

template <typename T>
struct TensorsIn<std::optional<T>> {
  static constexpr bool kAny = TensorsIn<T>::kAny;
  template <typename F>
  static void visit(std::optional<T>& value, F& f) {
    if (value.has_value()) {
      visit_tensors(*value, f);
    }
  }
};

template <typename Container, typename Element>
struct TensorsInSequence {
  static constexpr bool kAny = TensorsIn<Element>::kAny;
  template <typename F>
  static void visit(Container& values, F& f) {
    for (auto& value : values) {
      visit_tensors(value, f);
    }
  }
};
template <typename T, typename A>
struct TensorsIn<std::vector<T, A>> : TensorsInSequence<std::vector<T, A>, T> {};
template <typename T, size_t N>
struct TensorsIn<std::array<T, N>> : TensorsInSequence<std::array<T, N>, T> {};

template <typename Map, typename Element>
struct TensorsInMap {
  static constexpr bool kAny = TensorsIn<Element>::kAny;
  template <typename F>
  static void visit(Map& values, F& f) {
    for (auto& entry : values) {
      visit_tensors(entry.second, f);
    }
  }
};
template <typename K, typename T, typename C, typename A>
struct TensorsIn<std::map<K, T, C, A>> : TensorsInMap<std::map<K, T, C, A>, T> {};
template <typename K, typename T, typename H, typename E, typename A>
struct TensorsIn<std::unordered_map<K, T, H, E, A>>
    : TensorsInMap<std::unordered_map<K, T, H, E, A>, T> {};

template <typename Tuple, typename... Ts>
struct TensorsInTuple {
  static constexpr bool kAny = (TensorsIn<Ts>::kAny || ...);
  template <typename F>
  static void visit(Tuple& values, F& f) {
    std::apply([&f](auto&... value) { (visit_tensors(value, f), ...); }, values);
  }
};
template <typename... Ts>
struct TensorsIn<std::tuple<Ts...>> : TensorsInTuple<std::tuple<Ts...>, Ts...> {};
template <typename A, typename B>
struct TensorsIn<std::pair<A, B>> : TensorsInTuple<std::pair<A, B>, A, B> {};

}  // namespace torchamp::amp::detail
