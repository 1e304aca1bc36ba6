#include "torchamp/optim/moments.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/Exception.h>

#include "torchamp/kernels/random.h"

namespace torchamp::optim::detail {
namespace {

using kernels::Storage;

bool is_double(const at::Tensor& parameter) {
  return c10::toRealValueType(parameter.scalar_type()) == at::kDouble;
}

// Streams of one parameter in one step: moments 0 to 2, and the parameter itself.
constexpr uint64_t kParameterStream = 3;

kernels::Stream stream_of_codes(const at::Tensor& codes, const at::Tensor& scale,
                                bool is_positive) {
  kernels::Stream stream;
  stream.storage = is_positive ? Storage::kBlock8Unsigned : Storage::kBlock8Signed;
  stream.data = codes.data_ptr();
  stream.rest = scale.data_ptr();
  return stream;
}

int64_t num_blocks(int64_t count) { return (count + kernels::kBlock8 - 1) / kernels::kBlock8; }

}  // namespace

at::ScalarType moment_dtype(const at::Tensor& parameter, const FusedOptions& options) {
  if (parameter.is_complex()) return parameter.scalar_type();
  if (is_double(parameter)) return at::kDouble;
  const bool is_16bit = parameter.scalar_type() != at::kFloat;
  if (is_16bit && options.low_precision_weights == LowPrecisionWeights::kPlain) {
    return parameter.scalar_type();
  }
  switch (options.moments) {
    case Moments::kBFloat16:
      return at::kBFloat16;
    case Moments::k8Bit:
      return at::kByte;
    default:
      return at::kFloat;
  }
}

MomentArrays::MomentArrays(const PlanItem& item, const FusedOptions& options, MomentScales& scales,
                           int64_t step)
    : item_(item),
      options_(options),
      scales_(scales),
      // By place in the optimizer, not by address: a run can be repeated.
      step_key_(kernels::stream_key(options.seed, static_cast<uint64_t>(step),
                                    (static_cast<uint64_t>(item.group) << 32) | item.index)) {}

kernels::Stream MomentArrays::parameter() const {
  kernels::Stream stream = item_.parameter_stream;
  stream.key = kernels::mix64(step_key_ ^ kParameterStream);
  return stream;
}

kernels::Stream MomentArrays::signed_moment(at::Tensor& moment, int number) {
  return moment_stream(moment, number, Storage::kBlock8Signed);
}

kernels::Stream MomentArrays::positive_moment(at::Tensor& moment, int number) {
  return moment_stream(moment, number, Storage::kBlock8Unsigned);
}

// Brings a moment that was made for another state of the parameter, or read from an archive, into
// the dtype and the memory order that the kernels need.
void MomentArrays::adapt(at::Tensor& moment, at::Tensor& scale, bool is_positive) const {
  TORCH_CHECK_VALUE(moment.sizes() == item_.parameter.sizes(), "[step] A moment of ", item_.name(),
                    ", has shape ", moment.sizes(),
                    "; the parameter's own is accepted. Was the parameter given other memory, or "
                    "the state read from another model's archive?");
  const at::ScalarType dtype = moment_dtype(item_.parameter, options_);
  const bool was_8bit = moment.scalar_type() == at::kByte;
  const bool is_8bit = dtype == at::kByte;
  TORCH_CHECK_VALUE(
      !was_8bit || scale.defined(), "[step] The 8-bit moments of ", item_.name(),
      ", came without their factors; a state from optimizer_state_dict() is accepted. "
      "Was it read from an archive (torch::load)?");
  if (was_8bit && is_8bit && has_order_of_values(moment, item_)) return;
  TORCH_CHECK_VALUE(moment.is_cpu() || !(was_8bit || is_8bit), "[step] The 8-bit moments of ",
                    item_.name(),
                    ", lie in another order than the parameter; on a GPU an unchanged layout is "
                    "accepted. Change it before the first step.");
  if (was_8bit) moment = decode_moment(moment, scale, is_positive);
  if (!is_8bit && moment.scalar_type() != dtype) moment = moment.to(dtype);
  moment = in_order_of(moment, item_);
  if (is_8bit) moment = encode_moment(moment, is_positive, options_.seed, scale);
}

kernels::Stream MomentArrays::moment_stream(at::Tensor& moment, int number, Storage of_8_bits) {
  const at::ScalarType dtype = moment_dtype(item_.parameter, options_);
  const bool is_positive = of_8_bits == Storage::kBlock8Unsigned;
  at::Tensor& scale =
      scales_.of[item_.parameter.unsafeGetTensorImpl()].at(static_cast<size_t>(number));
  if (!moment.defined()) {
    moment =
        at::zeros_like(item_.parameter, item_.parameter.options().dtype(dtype).requires_grad(false),
                       at::MemoryFormat::Preserve);
    if (dtype == at::kByte) {
      scale = at::zeros({num_blocks(item_.count)},
                        at::TensorOptions().dtype(at::kFloat).device(item_.parameter.device()));
    }
  }
  adapt(moment, scale, is_positive);
  kernels::Stream stream;
  stream.key = kernels::mix64(step_key_ ^ static_cast<uint64_t>(number));
  if (dtype == at::kByte) {
    stream.storage = of_8_bits;
    stream.rest = scale.data_ptr();
  } else {
    stream.storage =
        multi_tensor::storage_of(real_values(moment), [] { return "[step] A moment"; });
    if (stream.storage == Storage::kBf16 && options_.moments == Moments::kBFloat16) {
      stream.storage = Storage::kBf16Stochastic;
    }
  }
  stream.data = moment.data_ptr();
  return stream;
}

at::Tensor decode_moment(const at::Tensor& codes, const at::Tensor& scale, bool is_positive) {
  at::Tensor values = at::empty_like(codes, codes.options().dtype(at::kFloat));
  const kernels::Stream stream = stream_of_codes(codes, scale, is_positive);
  multi_tensor::cpu_kernels().read(stream, {0, codes.numel()}, values.data_ptr<float>());
  return values;
}

at::Tensor encode_moment(const at::Tensor& values, bool is_positive, uint64_t seed,
                         at::Tensor& scale) {
  at::Tensor source = values.to(at::kFloat);
  if (!source.is_non_overlapping_and_dense()) source = source.contiguous();
  at::Tensor codes = at::empty_like(source, source.options().dtype(at::kByte));
  scale = at::zeros({num_blocks(codes.numel())}, at::TensorOptions().dtype(at::kFloat));
  kernels::Stream stream = stream_of_codes(codes, scale, is_positive);
  stream.key = kernels::mix64(seed);
  multi_tensor::cpu_kernels().write(stream, {0, codes.numel()}, source.const_data_ptr<float>());
  return codes;
}

}  // namespace torchamp::optim::detail
