#pragma once
// Fixtures of the amp tests: one-value parameters, a scaler that is ready, and captured warnings.

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "torchamp/amp/grad_scaler.h"

namespace torchamp::test {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// Collects what LibTorch would print as warnings on this thread.
class Warnings : public c10::WarningHandler {
 public:
  Warnings() : guard_(this) {}
  void process(const c10::Warning& warning) override { texts_.push_back(warning.msg()); }
  const std::vector<std::string>& texts() const { return texts_; }
  int64_t count(const std::string& part) const {
    int64_t count = 0;
    for (const auto& text : texts_) {
      count += text.find(part) != std::string::npos ? 1 : 0;
    }
    return count;
  }

 private:
  std::vector<std::string> texts_;
  c10::WarningUtils::WarningHandlerGuard guard_;
};

/// The text of the exception of type E that `f` throws; empty when it throws none.
template <typename E = c10::Error, typename F>
std::string error_of(F&& f) {
  try {
    f();
  } catch (const E& error) {
    return error.what();
  }
  return {};
}

inline void expect_contains(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "in: " << text << "\nnot found: " << part;
}

inline void set_grad(const at::Tensor& parameter, float gradient) {
  parameter.mutable_grad() = torch::full_like(parameter, gradient, torch::kFloat).detach();
}

/// A float32 leaf of shape {1} with value v, and without or with a gradient.
inline at::Tensor P(float v) { return torch::full({1}, v).requires_grad_(); }
inline at::Tensor P(float v, float g) {
  at::Tensor parameter = P(v);
  set_grad(parameter, g);
  return parameter;
}

inline float value(const at::Tensor& tensor) { return tensor.detach().item<float>(); }
inline float grad(const at::Tensor& parameter) { return parameter.grad().item<float>(); }

inline std::unique_ptr<torch::optim::SGD> sgd(std::vector<at::Tensor> parameters, double lr = 1.0) {
  return std::make_unique<torch::optim::SGD>(std::move(parameters), torch::optim::SGDOptions(lr));
}

/// A scaler that has scaled one zero, so that its scale is on the CPU.
inline amp::GradScaler ready(amp::GradScalerOptions options) {
  amp::GradScaler scaler(std::move(options));
  scaler.scale(torch::zeros({}));
  return scaler;
}
inline amp::GradScaler ready(double init_scale) { return ready({.init_scale = init_scale}); }

inline int64_t tracker(const amp::GradScaler& scaler) {
  return scaler.state_dict().at("_growth_tracker").to_int();
}

}  // namespace torchamp::test
