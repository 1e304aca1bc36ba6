#include "torchamp/amp/op_rules.h"

#include <array>

#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>

namespace torchamp::amp::detail {
namespace {

constexpr std::array kCpuLowerPrecision{"conv1d",
                                        "conv1d.padding",
                                        "conv2d",
                                        "conv2d.padding",
                                        "conv3d",
                                        "conv3d.padding",
                                        "bmm",
                                        "mm",
                                        "linalg_vecdot",
                                        "baddbmm",
                                        "addmm",
                                        "_addmm_activation",
                                        "addbmm",
                                        "linear",
                                        "_convolution.deprecated",
                                        "matmul",
                                        "conv_tbc",
                                        "mkldnn_rnn_layer",
                                        "conv_transpose1d",
                                        "conv_transpose2d.input",
                                        "conv_transpose3d.input",
                                        "prelu",
                                        "scaled_dot_product_attention",
                                        "_native_multi_head_attention"};

constexpr std::array kCpuFp32{"_grid_sampler_2d_cpu_fallback",
                              "_lu_with_info",
                              "adaptive_avg_pool3d",
                              "adaptive_max_pool3d",
                              "avg_pool3d",
                              "binary_cross_entropy",
                              "binary_cross_entropy_with_logits",
                              "cdist",
                              "cholesky_inverse",
                              "cholesky_solve",
                              "cosine_embedding_loss",
                              "cross_entropy_loss",
                              "ctc_loss.IntList",
                              "ctc_loss.Tensor",
                              "fake_quantize_per_tensor_affine",
                              "fft_fft",
                              "fft_fft2",
                              "fft_fftn",
                              "fft_hfft",
                              "fft_ifft",
                              "fft_ifft2",
                              "fft_ifftn",
                              "fft_ihfft",
                              "fft_irfft",
                              "fft_irfft2",
                              "fft_irfftn",
                              "fft_rfft",
                              "fft_rfft2",
                              "fft_rfftn",
                              "fractional_max_pool2d",
                              "fractional_max_pool3d",
                              "geqrf",
                              "grid_sampler",
                              "grid_sampler_2d",
                              "grid_sampler_3d",
                              "hinge_embedding_loss",
                              "huber_loss",
                              "inverse",
                              "kl_div",
                              "l1_loss",
                              "linalg_cholesky",
                              "linalg_cholesky_ex",
                              "linalg_cond",
                              "linalg_cond.p_str",
                              "linalg_eig",
                              "linalg_eigh",
                              "linalg_eigvals",
                              "linalg_eigvalsh",
                              "linalg_householder_product",
                              "linalg_inv",
                              "linalg_inv_ex",
                              "linalg_lstsq",
                              "linalg_matrix_rank",
                              "linalg_matrix_rank.tol_tensor",
                              "linalg_matrix_rank.atol_rtol_tensor",
                              "linalg_matrix_rank.atol_rtol_float",
                              "linalg_matrix_sqrth",
                              "linalg_qr",
                              "linalg_solve",
                              "linalg_svd",
                              "linalg_svdvals",
                              "linalg_tensorinv",
                              "linalg_tensorsolve",
                              "lu_solve",
                              "margin_ranking_loss",
                              "max_pool3d",
                              "max_unpool2d",
                              "max_unpool3d",
                              "mse_loss",
                              "multi_margin_loss",
                              "multilabel_margin_loss",
                              "multilabel_margin_loss_forward",
                              "nanquantile",
                              "nanquantile.scalar",
                              "nll_loss",
                              "nll_loss2d",
                              "orgqr",
                              "ormqr",
                              "pinverse",
                              "poisson_nll_loss",
                              "polar",
                              "prod",
                              "prod.dim_int",
                              "quantile",
                              "quantile.scalar",
                              "reflection_pad1d",
                              "reflection_pad2d",
                              "replication_pad1d",
                              "replication_pad2d",
                              "replication_pad3d",
                              "smooth_l1_loss",
                              "soft_margin_loss",
                              "stft",
                              "stft.center",
                              "svd",
                              "trace",
                              "triangular_solve",
                              "triplet_margin_loss",
                              "view_as_complex",
                              "cholesky",
                              "qr",
                              "prod.dim_Dimname"};

constexpr std::array kCpuPromote{"cat", "stack", "index_copy", "index_copy.dimname"};

OpRules cpu_rules() {
  OpRules rules;
  for (const char* name : kCpuLowerPrecision) {
    rules.emplace(name, OpRule::kLowerPrecision);
  }
  for (const char* name : kCpuFp32) {
    rules.emplace(name, OpRule::kFp32);
  }
  for (const char* name : kCpuPromote) {
    rules.emplace(name, OpRule::kPromote);
  }
  return rules;
}

// From the arguments of LibTorch's macros to the names in the dispatcher.
std::string joined(std::string_view name) { return std::string(name); }
std::string joined(std::string_view name, std::string_view overload) {
  return std::string(name).append(".").append(overload);
}

OpRules cuda_rules() {
  OpRules rules;
#define TORCHAMP_NAME_1(NAME) joined(#NAME)
#define TORCHAMP_NAME_2(NAME, OVERLOAD) joined(#NAME, #OVERLOAD)
#define TORCHAMP_PICK(_1, _2, NAME, ...) NAME
#define TORCHAMP_NAME(...) \
  TORCHAMP_PICK(__VA_ARGS__, TORCHAMP_NAME_2, TORCHAMP_NAME_1, )(__VA_ARGS__)
#define TORCHAMP_LOWER(...) rules.emplace(TORCHAMP_NAME(__VA_ARGS__), OpRule::kLowerPrecision);
#define TORCHAMP_FP32(...) rules.emplace(TORCHAMP_NAME(__VA_ARGS__), OpRule::kFp32);
#define TORCHAMP_SET(...) rules.emplace(TORCHAMP_NAME(__VA_ARGS__), OpRule::kFp32SetOptDtype);
#define TORCHAMP_PROMOTE(...) rules.emplace(TORCHAMP_NAME(__VA_ARGS__), OpRule::kPromote);
#define TORCHAMP_APPEND(OP, REGISTERED, ...) rules.emplace(REGISTERED, OpRule::kFp32AppendDtype);
  AT_FORALL_LOWER_PRECISION_FP(TORCHAMP_LOWER)
  AT_FORALL_FP32(TORCHAMP_FP32)
  AT_FORALL_FP32_SET_OPT_DTYPE(TORCHAMP_SET)
  AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(TORCHAMP_APPEND)
  AT_FORALL_PROMOTE(TORCHAMP_PROMOTE)
#undef TORCHAMP_NAME_1
#undef TORCHAMP_NAME_2
#undef TORCHAMP_PICK
#undef TORCHAMP_NAME
#undef TORCHAMP_LOWER
#undef TORCHAMP_FP32
#undef TORCHAMP_SET
#undef TORCHAMP_PROMOTE
#undef TORCHAMP_APPEND
  // Registered for CUDA beside the header's lists.
  rules.emplace("cudnn_convolution", OpRule::kLowerPrecision);
  rules.emplace("cudnn_convolution_transpose", OpRule::kLowerPrecision);
  rules.emplace("_cudnn_rnn", OpRule::kLowerPrecision);
  rules.emplace("binary_cross_entropy", OpRule::kBanned);
  return rules;
}

}  // namespace

std::string short_name(const c10::OperatorName& name) {
  std::string text = name.name.starts_with(kAten) ? name.name.substr(kAten.size()) : name.name;
  return name.overload_name.empty() ? text : text.append(".").append(name.overload_name);
}

const OpRules& known_rules(c10::DeviceType device_type) {
  static const OpRules cpu = cpu_rules();
  static const OpRules cuda = cuda_rules();
  return device_type == c10::kCPU ? cpu : cuda;
}

OpRules libtorch_rules(c10::DeviceType device_type) {
  OpRules rules;
  const auto& known = known_rules(device_type);
  const auto key = at::autocast::get_autocast_dispatch_key_from_device_type(device_type);
  for (const auto& op : c10::Dispatcher::singleton().getRegistrationsForDispatchKey(key)) {
    std::string name = short_name(op);
    const auto rule = known.find(name);
    rules.emplace(std::move(name), rule == known.end() ? OpRule::kUnknown : rule->second);
  }
  return rules;
}

}  // namespace torchamp::amp::detail
