#include "support/recipe.h"

#include <cstdio>

namespace torchamp::testing {
namespace {

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

}  // namespace

uint64_t splitmix64(uint64_t z) {
  z += 0x9E3779B97F4A7C15U;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
  return z ^ (z >> 31);
}

torch::Tensor integers(uint64_t stream, int64_t count) {
  torch::Tensor result = torch::empty({count}, torch::kLong);
  int64_t* out = result.mutable_data_ptr<int64_t>();
  for (int64_t i = 0; i < count; ++i) {
    out[i] = static_cast<int64_t>(splitmix64((stream << 32) + static_cast<uint64_t>(i)) >> 48);
  }
  return result;
}

torch::Tensor uniform(uint64_t stream, at::IntArrayRef shape) {
  int64_t count = c10::multiply_integers(shape);
  return (integers(stream, count).to(torch::kFloat) / 32768 - 1).reshape(shape);
}

void fill_parameters(torch::nn::Module& model) {
  torch::NoGradGuard no_grad;
  uint64_t stream = 1000;
  for (auto& item : model.named_parameters()) {
    torch::Tensor& parameter = item.value();
    torch::Tensor u = uniform(stream++, parameter.sizes());
    if (parameter.dim() >= 2) {
      int64_t fan_in = parameter.numel() / parameter.size(0);
      double bound = 1;
      while (bound * bound * static_cast<double>(fan_in) > 3) {
        bound /= 2;
      }
      parameter.copy_(u * bound);
    } else {
      parameter.copy_(u / 8 + (ends_with(item.key(), "weight") ? 1 : 0));
    }
  }
}

void fill_buffers(torch::nn::Module& model) {
  uint64_t stream = 5000;
  for (auto& item : model.named_buffers()) {
    torch::Tensor u = uniform(stream++, item.value().sizes());
    if (ends_with(item.key(), "running_mean")) {
      item.value().copy_(u / 8);
    } else if (ends_with(item.key(), "running_var")) {
      item.value().copy_(u / 2 + 1);
    }
  }
}

std::string fnv1a(const std::vector<torch::Tensor>& tensors) {
  uint64_t value = 0xCBF29CE484222325U;
  for (const torch::Tensor& tensor : tensors) {
    torch::Tensor bytes = tensor.detach().contiguous();
    const auto* data = static_cast<const unsigned char*>(bytes.const_data_ptr());
    for (size_t i = 0; i < bytes.nbytes(); ++i) {
      value = (value ^ data[i]) * 0x100000001B3U;
    }
  }
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(value));
  return text;
}

}  // namespace torchamp::testing
