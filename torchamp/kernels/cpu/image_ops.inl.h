// The image kernels of a table. Include once in a file, after a lane_*.h.

#include "torchamp/kernels/cpu/batch_norm.inl.h"
#include "torchamp/kernels/cpu/max_pool.inl.h"
#include "torchamp/kernels/cpu/relu.inl.h"

namespace torchamp::kernels {
namespace {

constexpr ImageKernels image_kernels = {
    image::moments, image::normalize,     image::grad_sums, image::grad_input,
    image::relu,    image::relu_backward, image::max_pool,  image::max_pool_backward};

}  // namespace
}  // namespace torchamp::kernels
