#pragma once
// An op on 16-bit images that lie in memory channel by channel, computed on copies whose channels
// lie side by side (channels_last, channels_last_3d). Internal.

#include <optional>
#include <tuple>
#include <type_traits>

#include <ATen/core/Tensor.h>

namespace torchamp::ops::detail {

/// Whether a tensor of 16-bit numbers (N, C, H, W) or (N, C, D, H, W) lies in memory in that order,
/// and LibTorch takes it so.
bool is_contiguous_image(const at::Tensor& tensor);

/// The numbers of such a tensor in a new one, in channels_last. On all threads.
at::Tensor to_channels_last(const at::Tensor& tensor);

/// A tensor that nobody else holds, contiguous, with the strides of a new one: itself where its
/// memory allows, else a copy. Undefined ones, and those of other dimensions, come back as they
/// are.
at::Tensor from_channels_last(const at::Tensor& tensor);

/// For ops of at::_ops whose `const Tensor&` arguments are images all, and whose outputs of four
/// and five dimensions are. Optional tensors (a bias) are taken as they are.
template <class Op, class Schema = typename Op::schema>
struct ChannelsLast;

template <class Op, class Return, class... Args>
struct ChannelsLast<Op, Return(Args...)> {
  static bool allows(const std::decay_t<Args>&... args) { return (fits(args) && ...); }

  /// `function` gets the copies and returns what the op does.
  template <class Function>
  static Return compute(const Function& function, Args... args) {
    const std::tuple<std::decay_t<Args>...> last(copied(args)...);
    return back(std::apply(function, last));
  }

 private:
  static bool fits(const at::Tensor& tensor) { return is_contiguous_image(tensor); }
  template <class T>
  static bool fits(const T& /*no image*/) {
    return true;
  }
  static at::Tensor copied(const at::Tensor& tensor) { return to_channels_last(tensor); }
  template <class T>
  static const T& copied(const T& value) {
    return value;
  }
  static at::Tensor back(const at::Tensor& output) { return from_channels_last(output); }
  template <class... Tensors>
  static std::tuple<Tensors...> back(const std::tuple<Tensors...>& outputs) {
    return std::apply([](const Tensors&... each) { return std::tuple<Tensors...>(back(each)...); },
                      outputs);
  }
};

/// For ops that have no such way.
struct NoChannelsLast {};

}  // namespace torchamp::ops::detail
