// The rarer pooling layers, embedding bags, resampling and distances of float16 on CPU, through
// LibTorch's own float32 kernels.

#include <ATen/core/Tensor.h>
#include <ATen/ops/_adaptive_avg_pool2d_ops.h>
#include <ATen/ops/_cdist_backward_ops.h>
#include <ATen/ops/_cdist_forward_ops.h>
#include <ATen/ops/_embedding_bag_dense_backward_ops.h>
#include <ATen/ops/_euclidean_dist_ops.h>
#include <ATen/ops/_upsample_bicubic2d_aa_backward_ops.h>
#include <ATen/ops/_upsample_bicubic2d_aa_ops.h>
#include <ATen/ops/_upsample_bilinear2d_aa_backward_ops.h>
#include <ATen/ops/_upsample_bilinear2d_aa_ops.h>
#include <ATen/ops/adaptive_max_pool3d_backward_ops.h>
#include <ATen/ops/adaptive_max_pool3d_ops.h>
#include <ATen/ops/fractional_max_pool2d_backward_ops.h>
#include <ATen/ops/fractional_max_pool2d_ops.h>
#include <ATen/ops/fractional_max_pool3d_backward_ops.h>
#include <ATen/ops/fractional_max_pool3d_ops.h>
#include <ATen/ops/grid_sampler_2d_backward_ops.h>
#include <ATen/ops/grid_sampler_2d_ops.h>
#include <ATen/ops/grid_sampler_3d_backward_ops.h>
#include <ATen/ops/grid_sampler_3d_ops.h>

#include "torchamp/ops/half_op.h"
#include "torchamp/ops/op_kernel.h"

namespace torchamp::ops::detail {
namespace {

constexpr const char* kPooling = "fp16 is 1.6 to 2 times slower than fp32";
constexpr const char* kSampling = "fp16 is 2 to 60 times slower than fp32";
constexpr const char* kBag = "fp16 is 5 times slower than fp32";
constexpr const char* kDistance = "fp16 is 4 to 7 times slower than fp32, or absent";
constexpr const char* kAbsent = "LibTorch has no fp16 kernel";

}  // namespace

void add_half_more_layers(OpTable& table) {
  namespace op = at::_ops;
  add_half_op<op::_adaptive_avg_pool2d>(table, kPooling);
  add_half_op<op::adaptive_max_pool3d>(table, kPooling);
  add_half_op<op::adaptive_max_pool3d_backward>(table, kPooling);
  add_half_op<op::fractional_max_pool2d>(table, kPooling);
  add_half_op<op::fractional_max_pool2d_backward>(table, kPooling);
  add_half_op<op::fractional_max_pool3d>(table, kPooling);
  add_half_op<op::fractional_max_pool3d_backward>(table, kPooling);
  add_half_op<op::grid_sampler_2d>(table, kSampling);
  add_half_op<op::grid_sampler_2d_backward>(table, kSampling);
  add_half_op<op::grid_sampler_3d>(table, kSampling);
  add_half_op<op::grid_sampler_3d_backward>(table, kSampling);
  add_half_op<op::_embedding_bag_dense_backward>(table, kBag);
  add_half_op<op::_cdist_forward>(table, kDistance);
  add_half_op<op::_cdist_backward>(table, kDistance);
  add_half_op<op::_euclidean_dist>(table, kDistance);
  add_half_op<op::_upsample_bilinear2d_aa>(table, kAbsent);
  add_half_op<op::_upsample_bilinear2d_aa_backward>(table, kAbsent);
  add_half_op<op::_upsample_bicubic2d_aa>(table, kAbsent);
  add_half_op<op::_upsample_bicubic2d_aa_backward>(table, kAbsent);
}

}  // namespace torchamp::ops::detail
