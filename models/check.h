#pragma once
// Checks that every model makes at its door: sizes in its options, shape and dtype of its input.

#include <cstdint>

#include <torch/torch.h>

namespace torchamp::models::detail {

/// `value`, or `fallback` where it is 0. Throws c10::ValueError for a negative or absurd size.
int64_t size_or(int64_t value, int64_t fallback, const char* model, const char* field);

/// Throws unless `input` is a floating [B, channels, H, W] with H and W of at least `smallest`.
void check_image(const torch::Tensor& input, const char* model, int64_t channels, int64_t smallest);

/// Throws unless `input` has a floating point dtype.
void check_floating(const torch::Tensor& input, const char* model);

}  // namespace torchamp::models::detail
