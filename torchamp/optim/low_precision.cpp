#include "torchamp/optim/low_precision.h"

#include <algorithm>
#include <memory>
#include <unordered_map>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include "torchamp/base/near_names.h"
#include "torchamp/multi_tensor/pending_factors.h"
#include "torchamp/optim/cast_parameters.h"
#include "torchamp/optim/master_weights.h"

namespace torchamp::optim {
namespace {

// One parameter, however many modules own it.
struct Candidate {
  at::Tensor parameter;
  std::vector<std::string> names;
  bool is_cast = true;  // by each of its owners
  bool is_kept = false;
  bool is_named = false;  // in `also`
};

class Candidates {
 public:
  explicit Candidates(const torch::nn::Module& module) { collect(module, ""); }

  std::vector<Candidate>& all() { return all_; }

  // Calls `visit` for each candidate that an entry of LowPrecisionOptions::`option` stands for.
  template <typename Visit>
  void for_matches(const char* option, const std::string& pattern, const Visit& visit) {
    bool found = false;
    std::vector<std::string> names;
    for (Candidate& candidate : all_) {
      const bool matches = std::any_of(candidate.names.begin(), candidate.names.end(),
                                       [&](const auto& name) { return fits(pattern, name); });
      if (matches) visit(candidate);
      found = found || matches;
      names.insert(names.end(), candidate.names.begin(), candidate.names.end());
    }
    if (found) return;
    const std::string near = base::detail::near_names(pattern, names);
    TORCH_CHECK_VALUE(false, "[to_low_precision] '", pattern, "' in ", option,
                      " matches no parameter; names as in named_parameters() are accepted",
                      near.empty() ? "." : ". Did you mean " + near + "?");
  }

 private:
  void collect(const torch::nn::Module& module, const std::string& prefix) {
    const std::vector<std::string> cast = detail::cast_parameters(module);
    for (const auto& item : module.named_parameters(/*recurse=*/false)) {
      if (!item.value().defined()) continue;
      const auto [place, is_new] = places_.emplace(item.value().unsafeGetTensorImpl(), all_.size());
      if (is_new) all_.push_back({item.value(), {}});
      Candidate& candidate = all_[place->second];
      candidate.names.push_back(prefix + item.key());
      candidate.is_cast =
          candidate.is_cast && std::find(cast.begin(), cast.end(), item.key()) != cast.end();
    }
    for (const auto& child : module.named_children()) {
      if (child.value()) collect(*child.value(), prefix + child.key() + ".");
    }
  }

  // The name itself, or a module that it is in.
  static bool fits(const std::string& pattern, const std::string& name) {
    for (size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.', dot + 1)) {
      if (base::detail::matches(pattern, name.substr(0, dot))) return true;
    }
    return base::detail::matches(pattern, name);
  }

  std::vector<Candidate> all_;
  std::unordered_map<const c10::TensorImpl*, size_t> places_;
};

// Whether the parameter is to be changed; throws where it cannot be.
bool is_to_convert(const Candidate& candidate, at::ScalarType dtype) {
  if (candidate.is_kept || !(candidate.is_cast || candidate.is_named)) return false;
  const at::Tensor& parameter = candidate.parameter;
  const at::ScalarType now = parameter.scalar_type();
  if (now != at::kFloat && !multi_tensor::is_16bit(now)) {
    TORCH_CHECK_VALUE(!candidate.is_named, "[to_low_precision] '", candidate.names.front(),
                      "' in also is ", now, "; Float, BFloat16 and Half are accepted.");
    return false;
  }
  if (now == dtype && detail::find_master(parameter) != nullptr) return false;
  TORCH_CHECK_VALUE(
      parameter.layout() == at::kStrided && !parameter.is_inference() && parameter.is_leaf(),
      "[to_low_precision] '", candidate.names.front(),
      "' is sparse, computed from other tensors or made in inference mode; a strided leaf is "
      "accepted. Name it in keep to leave it as it is.");
  TORCH_CHECK_VALUE(now != dtype || parameter.is_non_overlapping_and_dense(),
                    "[to_low_precision] The memory of '", candidate.names.front(), "', ", now,
                    " of sizes ", parameter.sizes(),
                    ", has gaps or overlaps; dense memory is accepted. Is it a slice or an "
                    "expanded tensor? Name it in keep to leave it as it is.");
  return true;
}

void convert(const at::Tensor& parameter, at::ScalarType dtype) {
  if (parameter.scalar_type() == dtype) {
    detail::master_of(parameter);
    return;
  }
  const at::Tensor values = full_precision(parameter);
  parameter.set_data(at::empty_like(values, values.options().dtype(dtype)));
  detail::master_of(parameter)->set(parameter, values);
}

}  // namespace

std::vector<std::string> to_low_precision(torch::nn::Module& module, at::ScalarType dtype,
                                          const LowPrecisionOptions& options) {
  TORCH_CHECK_VALUE(multi_tensor::is_16bit(dtype), "[to_low_precision] The dtype ", dtype,
                    " came; BFloat16 and Half are accepted.");
  // 1. Check all.
  Candidates candidates(module);
  for (const std::string& pattern : options.keep) {
    candidates.for_matches("keep", pattern, [](Candidate& found) { found.is_kept = true; });
  }
  for (const std::string& pattern : options.also) {
    candidates.for_matches("also", pattern, [](Candidate& found) { found.is_named = true; });
  }
  std::vector<Candidate*> chosen;
  for (Candidate& candidate : candidates.all()) {
    if (is_to_convert(candidate, dtype)) chosen.push_back(&candidate);
  }
  // 2. Convert one by one, so that no more than one is there twice.
  const at::NoGradGuard no_grad;
  std::vector<std::string> names;
  for (const Candidate* candidate : chosen) {
    convert(candidate->parameter, dtype);
    names.push_back(candidate->names.front());
  }
  return names;
}

std::vector<std::string> to_full_precision(torch::nn::Module& module) {
  const at::NoGradGuard no_grad;
  std::vector<std::string> names;
  Candidates candidates(module);
  for (Candidate& candidate : candidates.all()) {
    const at::Tensor& parameter = candidate.parameter;
    if (detail::find_master(parameter) == nullptr) continue;
    parameter.set_data(full_precision(parameter));
    parameter.unsafeGetTensorImpl()->bump_version();
    detail::drop_master(parameter);
    detail::widen_gradient(parameter);
    names.push_back(candidate.names.front());
  }
  return names;
}

at::Tensor full_precision(const at::Tensor& parameter) {
  TORCH_CHECK_VALUE(parameter.defined(),
                    "[full_precision] An undefined tensor came; a parameter is accepted.");
  if (const auto master = detail::find_master(parameter)) return master->to_float(parameter);
  const at::Tensor value = parameter.detach();
  return multi_tensor::is_16bit(value.scalar_type()) ? value.to(at::kFloat) : value;
}

void set_full_precision(const at::Tensor& parameter, const at::Tensor& values) {
  TORCH_CHECK_VALUE(parameter.defined() && values.defined() && parameter.sizes() == values.sizes(),
                    "[set_full_precision] Values of sizes ",
                    values.defined() ? values.sizes() : at::IntArrayRef(),
                    " came for a parameter of sizes ",
                    parameter.defined() ? parameter.sizes() : at::IntArrayRef(),
                    "; defined tensors of the same sizes are accepted.");
  const at::NoGradGuard no_grad;
  if (const auto master = detail::find_master(parameter)) {
    master->set(parameter, values);
  } else {
    parameter.copy_(values);
  }
}

}  // namespace torchamp::optim
