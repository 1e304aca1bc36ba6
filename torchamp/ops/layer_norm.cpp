// Layer norm over the last dimensions, in float32 and rounded once.

#include <algorithm>
#include <array>
#include <optional>
#include <tuple>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/native_layer_norm_backward_ops.h>
#include <ATen/ops/native_layer_norm_ops.h>

#include "torchamp/kernels/cpu/table.h"
#include "torchamp/ops/op_kernel.h"
#include "torchamp/ops/optional_tensor.h"
#include "torchamp/ops/ours_first.h"
#include "torchamp/ops/rows.h"

// N rows, C columns

namespace torchamp::ops::detail {
namespace {

using Optional = std::optional<at::Tensor>;
using Three = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

// A sum over rows is one over at most so many parts of them, whatever the number of threads.
constexpr int64_t kMostParts = 64;
constexpr int64_t kLeastRowsOfPart = 16;

struct Shape {
  int64_t N;
  int64_t C;
};

// The shape as a matrix, of a call that LibTorch would take too.
std::optional<Shape> shape_of(const at::Tensor& input, c10::SymIntArrayRef normalized_shape) {
  const auto sizes = c10::asIntArrayRefSlowOpt(normalized_shape);
  if (!sizes.has_value() || sizes->empty() || !is_plain_float(input) || input.numel() == 0 ||
      !input.is_contiguous() || input.dim() < static_cast<int64_t>(sizes->size()) ||
      input.sizes().slice(static_cast<size_t>(input.dim()) - sizes->size()) != *sizes) {
    return std::nullopt;
  }
  int64_t C = 1;
  for (const int64_t size : *sizes) C *= size;
  return Shape{input.numel() / C, C};
}

// A weight or bias of C numbers, absent or of `dtype`.
bool is_parameter(const Optional& tensor, at::ScalarType dtype, int64_t C) {
  return !is_given(tensor) || (is_plain_float(*tensor) && tensor->scalar_type() == dtype &&
                               tensor->numel() == C && tensor->is_contiguous());
}

// The dtype of weight, bias, mean and 1 / deviation: float32 beside any input, or the input's.
std::optional<at::ScalarType> parameter_dtype(const at::Tensor& input, const Optional& weight,
                                              const Optional& bias) {
  at::ScalarType dtype = input.scalar_type();
  if (is_given(weight)) {
    dtype = weight->scalar_type();
  } else if (is_given(bias)) {
    dtype = bias->scalar_type();
  }
  if (dtype != at::kFloat && dtype != input.scalar_type()) return std::nullopt;
  return dtype;
}

std::optional<Three> layer_norm(const at::Tensor& input, c10::SymIntArrayRef normalized_shape,
                                const Optional& weight, const Optional& bias, double eps) {
  const std::optional<Shape> shape = shape_of(input, normalized_shape);
  const std::optional<at::ScalarType> dtype =
      shape.has_value() ? parameter_dtype(input, weight, bias) : std::nullopt;
  if (!dtype.has_value() || !is_parameter(weight, *dtype, shape->C) ||
      !is_parameter(bias, *dtype, shape->C)) {
    return std::nullopt;
  }
  const KernelsOnly kernels_only;
  const auto [N, C] = *shape;
  std::vector<int64_t> sizes = input.sizes().vec();
  std::fill(sizes.end() - static_cast<int64_t>(normalized_shape.size()), sizes.end(), 1);
  const at::Tensor mean = at::empty(sizes, input.options().dtype(at::kFloat));
  const at::Tensor rstd = at::empty(sizes, input.options().dtype(at::kFloat));
  at::Tensor out = at::empty_like(input, at::MemoryFormat::Contiguous);
  const at::Tensor weight_C = in_float(weight), bias_C = in_float(bias);
  kernels::LayerNorm norm;
  norm.x = rows_of(input, C);
  norm.out = rows_of(out, C);
  norm.weight = numbers_of(weight_C);
  norm.bias = numbers_of(bias_C);
  norm.eps = eps;
  norm.mean = mean.mutable_data_ptr<float>();
  norm.rstd = rstd.mutable_data_ptr<float>();
  const auto kernel = kernels::cpu_table().rows.layer_norm;
  const int64_t columns = C;
  at::parallel_for(0, N, grain_of(C), [&](int64_t begin, int64_t end) {
    kernel(norm, columns, {begin, end});
  });
  return Three(std::move(out), mean.to(*dtype), rstd.to(*dtype));
}

// Two sums for each column, in parts of the rows that the number of threads does not change.
class ColumnSums {
 public:
  explicit ColumnSums(const Shape& shape)
      : shape_(shape),
        rows_of_part_(std::max(kLeastRowsOfPart, (shape.N + kMostParts - 1) / kMostParts)),
        num_parts_((shape.N + rows_of_part_ - 1) / rows_of_part_),
        sums_(static_cast<size_t>(2 * num_parts_ * shape.C), 0.0F) {}

  int64_t num_parts() const { return num_parts_; }
  kernels::RowRange rows_of(int64_t part) const {
    return {part * rows_of_part_, std::min((part + 1) * rows_of_part_, shape_.N)};
  }
  float* first(int64_t part) { return sums_.data() + 2 * part * shape_.C; }
  float* second(int64_t part) { return first(part) + shape_.C; }

  // The first sums, or the second: all parts of a column in float64, rounded once.
  at::Tensor total(bool is_second, const Optional& like) {
    const at::Tensor result = at::empty(like->sizes(), like->options().dtype(at::kFloat));
    auto* to = result.mutable_data_ptr<float>();
    std::vector<double> totals(static_cast<size_t>(shape_.C), 0.0);
    for (int64_t part = 0; part < num_parts_; ++part) {
      const float* of_part = is_second ? second(part) : first(part);
      for (size_t column = 0; column < totals.size(); ++column) totals[column] += of_part[column];
    }
    for (size_t column = 0; column < totals.size(); ++column) {
      to[column] = static_cast<float>(totals[column]);
    }
    return result.to(like->scalar_type());
  }

 private:
  Shape shape_;
  int64_t rows_of_part_;
  int64_t num_parts_;
  std::vector<float> sums_;
};

bool is_taken(const at::Tensor& grad_out, const at::Tensor& input, const at::Tensor& mean,
              const at::Tensor& rstd, const Optional& weight, const Optional& bias,
              const Shape& shape, const std::array<bool, 3>& output_mask) {
  const std::optional<at::ScalarType> dtype = parameter_dtype(input, weight, bias);
  return dtype.has_value() && is_plain_float(grad_out) &&
         grad_out.scalar_type() == input.scalar_type() && grad_out.sizes() == input.sizes() &&
         is_plain_float(mean) && mean.numel() == shape.N && is_plain_float(rstd) &&
         rstd.numel() == shape.N && is_parameter(weight, *dtype, shape.C) &&
         is_parameter(bias, *dtype, shape.C) && (!output_mask[1] || is_given(weight)) &&
         (!output_mask[2] || is_given(bias));
}

Three gradients(const at::Tensor& grad_out, const at::Tensor& input, const at::Tensor& mean,
                const at::Tensor& rstd, const Optional& weight, const Optional& bias,
                const Shape& shape, const std::array<bool, 3>& output_mask) {
  Three result;
  const at::Tensor weight_C = in_float(weight);
  kernels::LayerNormGrad norm;
  norm.grad = rows_of(grad_out, shape.C);
  norm.x = rows_of(input, shape.C);
  if (output_mask[0]) {
    std::get<0>(result) = at::empty_like(input, at::MemoryFormat::Contiguous);
    norm.out = rows_of(std::get<0>(result), shape.C);
  }
  norm.weight = numbers_of(weight_C);
  norm.mean = numbers_of(mean);
  norm.rstd = numbers_of(rstd);
  const bool has_sums = output_mask[1] || output_mask[2];
  const auto kernel = kernels::cpu_table().rows.layer_norm_backward;
  if (!has_sums) {
    at::parallel_for(0, shape.N, grain_of(shape.C), [&](int64_t begin, int64_t end) {
      kernel(norm, shape.C, {begin, end});
    });
    return result;
  }
  ColumnSums sums(shape);
  const int64_t grain =
      std::max<int64_t>(1, grain_of(shape.C) * sums.num_parts() / std::max<int64_t>(shape.N, 1));
  at::parallel_for(0, sums.num_parts(), grain, [&](int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; ++part) {
      kernels::LayerNormGrad of_part = norm;
      of_part.sum_of_weight = sums.first(part);
      of_part.sum_of_bias = sums.second(part);
      kernel(of_part, shape.C, sums.rows_of(part));
    }
  });
  if (output_mask[1]) std::get<1>(result) = sums.total(/*is_second=*/false, weight);
  if (output_mask[2]) std::get<2>(result) = sums.total(/*is_second=*/true, bias);
  return result;
}

std::optional<Three> layer_norm_backward(const at::Tensor& grad_out, const at::Tensor& input,
                                         c10::SymIntArrayRef normalized_shape,
                                         const at::Tensor& mean, const at::Tensor& rstd,
                                         const Optional& weight, const Optional& bias,
                                         const std::array<bool, 3>& output_mask) {
  const std::optional<Shape> shape = shape_of(input, normalized_shape);
  // In float32 LibTorch's is the faster one.
  if (!shape.has_value() || input.scalar_type() == at::kFloat ||
      !is_taken(grad_out, input, mean, rstd, weight, bias, *shape, output_mask)) {
    return std::nullopt;
  }
  const KernelsOnly kernels_only;
  return gradients(grad_out.contiguous(), input, in_float(mean), in_float(rstd), weight, bias,
                   *shape, output_mask);
}

constexpr const char* kReason = "reads each row from memory once, and rounds once";

}  // namespace

void add_layer_norm(OpTable& table) {
  add_ours_first<at::_ops::native_layer_norm, &layer_norm>(table, kFloat32And16Bits, kReason);
  add_ours_first<at::_ops::native_layer_norm_backward, &layer_norm_backward>(table, k16Bit,
                                                                             kReason);
}

}  // namespace torchamp::ops::detail
