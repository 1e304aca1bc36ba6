#include "torchamp/nn/batch_norm_relu.h"

#include <c10/util/Exception.h>

#include "torchamp/nn/fused_norm.h"

namespace torchamp::nn {

void BatchNormReLU2dImpl::_check_input_dim(const at::Tensor& input) {
  TORCH_CHECK(input.dim() == 4, "[BatchNormReLU2d] The input has ", input.dim(),
              " dimensions; 4 are accepted (N, C, H, W).");
}

double BatchNormReLU2dImpl::count_batch() {
  if (is_training() && options.track_running_stats() && num_batches_tracked.defined()) {
    num_batches_tracked += 1;
    if (!options.momentum().has_value()) {  // the mean of all batches
      return 1.0 / num_batches_tracked.item<double>();
    }
  }
  return options.momentum().value_or(0.0);
}

at::Tensor BatchNormReLU2dImpl::forward(const at::Tensor& input, const at::Tensor& residual) {
  _check_input_dim(input);
  TORCH_CHECK(!residual.defined() || residual.sizes() == input.sizes(),
              "[BatchNormReLU2d] The residual has shape ", residual.sizes(), "; the input's, ",
              input.sizes(), ", is accepted. Does the shortcut lack a convolution?");
  const bool tracks = is_training() && options.track_running_stats();
  const bool uses_running = !is_training() && running_mean.defined() && running_var.defined();
  const bool gives_running = tracks || uses_running;
  detail::FusedNorm norm;
  norm.weight = weight;
  norm.bias = bias;
  if (gives_running) {
    norm.running_mean = running_mean;
    norm.running_var = running_var;
  }
  norm.uses_batch_statistics = !uses_running;
  norm.momentum = count_batch();
  norm.eps = options.eps();
  return detail::batch_norm_relu(input, residual, norm);
}

void BatchNormReLU2dImpl::pretty_print(std::ostream& stream) const {
  stream << std::boolalpha << "torchamp::nn::BatchNormReLU2d(" << options.num_features()
         << ", eps=" << options.eps() << ", momentum=";
  if (options.momentum().has_value()) {
    stream << *options.momentum();
  } else {
    stream << "none";
  }
  stream << ", affine=" << options.affine()
         << ", track_running_stats=" << options.track_running_stats() << ")";
}

}  // namespace torchamp::nn
