// float16 group norm of contiguous images on CPU: a group at a time, which stays in the cache,
// computed in float32 and rounded once. Other layouts go through LibTorch's float32 kernel.

#include <array>
#include <optional>
#include <tuple>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/native_group_norm_backward_ops.h>
#include <ATen/ops/native_group_norm_ops.h>

#include "torchamp/kernels/cpu/table.h"
#include "torchamp/ops/half_op.h"
#include "torchamp/ops/op_kernel.h"
#include "torchamp/ops/optional_tensor.h"
#include "torchamp/ops/ours_first.h"
#include "torchamp/ops/rows.h"

// N images, G groups, C channels of an image

namespace torchamp::ops::detail {
namespace {

using Optional = std::optional<at::Tensor>;
using Three = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

struct Shape {
  int64_t N, C, pixels, G;
};

std::optional<Shape> shape_of(const at::Tensor& x, const c10::SymInt& N, const c10::SymInt& C,
                              const c10::SymInt& pixels, int64_t G) {
  if (!is_plain(x) || x.scalar_type() != at::kHalf || x.numel() == 0 || !x.is_contiguous()) {
    return std::nullopt;
  }
  const Shape shape = {N.maybe_as_int().value_or(0), C.maybe_as_int().value_or(0),
                       pixels.maybe_as_int().value_or(0), G};
  if (shape.N * shape.C * shape.pixels != x.numel() || G <= 0 || shape.C % G != 0) {
    return std::nullopt;
  }
  return shape;
}

bool is_of_channels(const at::Tensor& tensor, int64_t count) {
  return is_plain(tensor) && tensor.is_contiguous() && tensor.numel() == count &&
         (tensor.scalar_type() == at::kHalf || tensor.scalar_type() == at::kFloat);
}

// Absent, or a number for each channel, in float16 or float32.
bool is_parameter(const Optional& tensor, int64_t C) {
  return !is_given(tensor) || is_of_channels(*tensor, C);
}

std::optional<Three> group_norm(const at::Tensor& x, const Optional& weight, const Optional& bias,
                                const c10::SymInt& N, const c10::SymInt& C,
                                const c10::SymInt& pixels, int64_t G, double eps) {
  const std::optional<Shape> shape = shape_of(x, N, C, pixels, G);
  const bool has_both = is_given(weight) && is_given(bias);
  const bool is_ours = shape.has_value() && is_parameter(weight, shape->C) &&
                       is_parameter(bias, shape->C) &&
                       (!has_both || weight->scalar_type() == bias->scalar_type());
  if (!is_ours) return std::nullopt;
  // Of the parameters' dtype, as LibTorch has them.
  const at::ScalarType dtype = is_given(weight) ? weight->scalar_type()
                               : is_given(bias) ? bias->scalar_type()
                                                : at::kHalf;
  const auto options = x.options().dtype(at::kFloat);
  const at::Tensor mean = at::empty({shape->N, G}, options);
  const at::Tensor rstd = at::empty({shape->N, G}, options);
  const at::Tensor weight_C = in_float(weight), bias_C = in_float(bias);
  at::Tensor out = at::empty_like(x);
  kernels::GroupNorm norm;
  norm.storage = kernels::Storage::kF16;
  norm.groups = G;
  norm.channels = shape->C / G;
  norm.pixels = shape->pixels;
  norm.x = x.const_data_ptr();
  norm.out = out.mutable_data_ptr();
  norm.weight = numbers_of(weight_C);
  norm.bias = numbers_of(bias_C);
  norm.eps = eps;
  norm.mean = mean.mutable_data_ptr<float>();
  norm.rstd = rstd.mutable_data_ptr<float>();
  const auto kernel = kernels::cpu_table().rows.group_norm;
  at::parallel_for(0, shape->N * G, grain_of(norm.channels * norm.pixels),
                   [&](int64_t begin, int64_t end) {
                     kernel(norm, {begin, end});
                   });
  return Three(std::move(out), dtype == at::kHalf ? to_half(mean) : mean,
               dtype == at::kHalf ? to_half(rstd) : rstd);
}

// sums[c] over the images, rounded once.
at::Tensor over_images(const std::vector<double>& sums, const at::Tensor& like) {
  at::Tensor total = at::empty({like.numel()}, like.options().dtype(at::kFloat));
  auto* to = total.mutable_data_ptr<float>();
  const auto C = static_cast<size_t>(like.numel());
  for (size_t c = 0; c < C; ++c) {
    double sum = 0;
    for (size_t i = c; i < sums.size(); i += C) sum += sums[i];
    to[c] = static_cast<float>(sum);
  }
  return like.scalar_type() == at::kHalf ? to_half(total) : total;
}

std::optional<Three> group_norm_backward(const at::Tensor& grad, const at::Tensor& x,
                                         const at::Tensor& mean, const at::Tensor& rstd,
                                         const Optional& weight, const c10::SymInt& N,
                                         const c10::SymInt& C, const c10::SymInt& pixels, int64_t G,
                                         const std::array<bool, 3>& wanted) {
  const std::optional<Shape> shape = shape_of(x, N, C, pixels, G);
  const bool is_ours = shape.has_value() && shape_of(grad, N, C, pixels, G).has_value() &&
                       is_parameter(weight, shape->C) && is_of_channels(mean, shape->N * G) &&
                       is_of_channels(rstd, shape->N * G) &&
                       (is_given(weight) || !(wanted[1] || wanted[2]));
  if (!is_ours) return std::nullopt;
  const at::Tensor weight_C = in_float(weight), means = to_float(mean), rstds = to_float(rstd);
  std::vector<double> sums(static_cast<size_t>(shape->N * shape->C)), dots(sums.size());
  at::Tensor grad_x, grad_weight, grad_bias;
  kernels::GroupNormGrad norm;
  norm.storage = kernels::Storage::kF16;
  norm.groups = G;
  norm.channels = shape->C / G;
  norm.pixels = shape->pixels;
  norm.grad = grad.const_data_ptr();
  norm.x = x.const_data_ptr();
  if (wanted[0]) {
    grad_x = at::empty_like(x);
    norm.out = grad_x.mutable_data_ptr();
  }
  norm.weight = numbers_of(weight_C);
  norm.mean = numbers_of(means);
  norm.rstd = numbers_of(rstds);
  norm.sum = sums.data();
  norm.dot = dots.data();
  const auto kernel = kernels::cpu_table().rows.group_norm_backward;
  at::parallel_for(0, shape->N * G, grain_of(norm.channels * norm.pixels),
                   [&](int64_t begin, int64_t end) {
                     kernel(norm, {begin, end});
                   });
  if (wanted[1]) grad_weight = over_images(dots, *weight);
  if (wanted[2]) grad_bias = over_images(sums, *weight);
  return Three(std::move(grad_x), std::move(grad_weight), std::move(grad_bias));
}

template <class Op, auto ours>
void add_norm(OpTable& table) {
  add_ours_first<Op, ours, HalfOp<Op>>(table, kFloat16, "fp16 is 2 to 8 times slower than fp32");
}

}  // namespace

void add_group_norm(OpTable& table) {
  add_norm<at::_ops::native_group_norm, &group_norm>(table);
  add_norm<at::_ops::native_group_norm_backward, &group_norm_backward>(table);
}

}  // namespace torchamp::ops::detail
