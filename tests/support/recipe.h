#pragma once
// Values that C++ and Python compute alike, bit for bit: tests/golden/recipe.py is the same in
// Python, and says what each function gives.

#include <cstdint>
#include <string>
#include <vector>

#include <torch/torch.h>

namespace torchamp::testing {

/// Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators", figure 13.
uint64_t splitmix64(uint64_t z);

/// `count` integers in [0, 65536), as Long.
torch::Tensor integers(uint64_t stream, int64_t count);

/// Multiples of 2^-15 in [-1, 1), as Float.
torch::Tensor uniform(uint64_t stream, at::IntArrayRef shape);

/// Weights of `model` from streams 1000, 1001, ... in the order of named_parameters().
void fill_parameters(torch::nn::Module& model);

/// BatchNorm's running mean and variance from streams 5000, 5001, ... in the order of
/// named_buffers().
void fill_buffers(torch::nn::Module& model);

/// FNV-1a, 64 bits, over the bytes of the tensors, as 16 hexadecimal digits.
std::string fnv1a(const std::vector<torch::Tensor>& tensors);

}  // namespace torchamp::testing
