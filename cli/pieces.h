#pragma once
// The data of tensors of any size and strides, cut into pieces that threads work on.

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

namespace torchamp::cli {

/// Tensors of one shape, cut alike, so that a tensor of any size costs little memory.
struct Pieces {
  std::vector<std::vector<at::Tensor>> all;  // of a million elements each at most; views
  int64_t fold = 1;  // how many elements each of them stands for: dimensions in which all tensors
                     // repeat themselves (stride 0) are there once
};

/// Nothing for tensors that make far more elements of a storage than it has: to visit them all
/// would take for ever.
std::optional<Pieces> pieces_of(std::vector<at::Tensor> tensors);

/// All of the storage that `tensor`, which is not empty, reaches, each element once.
at::Tensor reach_of(const at::Tensor& tensor);

/// Calls `work(i)` for each i below `count`, in LibTorch's threads.
void in_threads(int64_t count, const std::function<void(int64_t)>& work);

/// `piece` as a contiguous row of real numbers: a complex one is twice as long, its parts in turns.
at::Tensor as_row(const at::Tensor& piece);

/// The same, as float64.
at::Tensor as_doubles(const at::Tensor& piece);

}  // namespace torchamp::cli
