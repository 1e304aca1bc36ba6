#include "cli/pieces.h"

#include <algorithm>
#include <utility>

#include <ATen/Parallel.h>
#include <ATen/ops/view_as_real.h>

namespace torchamp::cli {
namespace {

// A few bytes of a file may claim any number of elements that overlap each other.
bool multiplies_its_storage(const at::Tensor& tensor) {
  constexpr int64_t kHarmless = int64_t{1} << 24;
  constexpr int64_t kMostFold = 64;
  const auto stored = static_cast<int64_t>(tensor.storage().nbytes() / tensor.element_size());
  return tensor.numel() > kHarmless && tensor.numel() / kMostFold > stored;
}

void cut(std::vector<at::Tensor> tensors, std::vector<std::vector<at::Tensor>>& pieces) {
  constexpr int64_t kMost = int64_t{1} << 20;
  const at::Tensor first = tensors.front();
  if (first.numel() <= kMost) {
    pieces.push_back(std::move(tensors));
    return;
  }
  const auto longest = std::max_element(first.sizes().begin(), first.sizes().end());
  const int64_t dim = longest - first.sizes().begin();
  const int64_t half = *longest / 2;
  for (const auto& [start, length] :
       {std::pair(int64_t{0}, half), std::pair(half, *longest - half)}) {
    std::vector<at::Tensor> halves;
    for (const at::Tensor& tensor : tensors) halves.push_back(tensor.narrow(dim, start, length));
    cut(std::move(halves), pieces);
  }
}

}  // namespace

std::optional<Pieces> pieces_of(std::vector<at::Tensor> tensors) {
  Pieces pieces;
  for (int64_t dim = 0; dim < tensors.front().dim(); ++dim) {
    const bool is_repeated = std::all_of(
        tensors.begin(), tensors.end(),
        [&](const at::Tensor& each) { return each.size(dim) > 1 && each.stride(dim) == 0; });
    if (!is_repeated) continue;
    pieces.fold *= tensors.front().size(dim);  // within an int64_t, as the number of elements is
    for (at::Tensor& tensor : tensors) tensor = tensor.narrow(dim, 0, 1);
  }
  if (std::any_of(tensors.begin(), tensors.end(), multiplies_its_storage)) return std::nullopt;
  cut(std::move(tensors), pieces.all);
  return pieces;
}

at::Tensor reach_of(const at::Tensor& tensor) {
  int64_t last = 0;
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
    last += (tensor.size(dim) - 1) * tensor.stride(dim);
  }
  return tensor.as_strided({last + 1}, {1});
}

void in_threads(int64_t count, const std::function<void(int64_t)>& work) {
  at::parallel_for(0, count, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) work(i);
  });
}

at::Tensor as_row(const at::Tensor& piece) {
  const at::Tensor row = piece.resolve_conj().resolve_neg().contiguous().reshape({-1});
  return row.is_complex() ? at::view_as_real(row).reshape({-1}) : row;
}

at::Tensor as_doubles(const at::Tensor& piece) {
  const at::Tensor row = as_row(piece);
  // 8-bit floats are converted to float32 alone.
  const bool is_8_bit_float = row.element_size() == 1 && row.is_floating_point();
  return (is_8_bit_float ? row.to(at::kFloat) : row).to(at::kDouble);
}

}  // namespace torchamp::cli
