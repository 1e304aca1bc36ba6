#include "torchamp/ops/matrix_products.h"

#include <algorithm>
#include <cstdint>

#include <ATen/ops/addmm_cpu_dispatch.h>
#include <ATen/ops/baddbmm_cpu_dispatch.h>
#include <ATen/ops/bmm_cpu_dispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm_cpu_dispatch.h>

#include "torchamp/ops/convert.h"

namespace torchamp::ops::detail {
namespace {

// Elements of float32 that one part of a product may take: 4 MiB. A panel of that size is still
// wide enough for the matrix kernel to run at full speed, and glibc hands the memory out again
// without new page faults.
constexpr int64_t kPanel = 1 << 20;
// A whole operand may take twice as much when that saves converting it again for each panel.
constexpr int64_t kWhole = 2 * kPanel;
constexpr int64_t kLeast = 256;  // rows or columns of a panel, however long the sum

// Short sums, as in the gradient of a weight, which is made while all others are held: what the
// product needs beside its result is a part of the step's peak. They lose little in small panels.
constexpr int64_t kShortSum = kLeast;
constexpr int64_t kPanelOfShortSums = kPanel / 8;

int64_t panel_of(int64_t inner) { return inner > kShortSum ? kPanel : kPanelOfShortSums; }

int64_t panel_length(int64_t panel, int64_t size, int64_t elements_each) {
  return std::clamp(panel / std::max<int64_t>(1, elements_each), kLeast,
                    std::max<int64_t>(size, kLeast));
}

// Whether the left side is converted once, and not again for each panel of the right.
bool is_converted_whole(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out) {
  if (a.size(1) > kShortSum) return a.numel() <= kWhole;
  return a.numel() <= kPanelOfShortSums ||
         (a.numel() <= kWhole && 16 * a.numel() <= b.numel() + out.numel());
}

// A part of a matrix in float32: of the whole if that was converted, else converted now.
at::Tensor part(const at::Tensor& whole, const at::Tensor& narrow, int64_t dim, int64_t begin,
                int64_t length) {
  return whole.defined() ? whole.narrow(dim, begin, length)
                         : to_float(narrow.narrow(dim, begin, length));
}

// The first term in float32, where it is small (a bias by the rows): rows that repeat are converted
// once. Undefined: it is converted part by part.
at::Tensor small_self(const at::Tensor& self) {
  at::Tensor once = self;
  for (int64_t dim = 0; dim < self.dim(); ++dim) {
    if (self.stride(dim) == 0 && self.size(dim) > 1) once = once.narrow(dim, 0, 1);
  }
  return once.numel() <= kPanel ? to_float(once).expand(self.sizes()) : at::Tensor();
}

bool uses(const at::Tensor& self, const at::Scalar& beta) {
  return self.defined() && beta.toDouble() != 0.0;  // 0 * NaN is 0 here, as LibTorch documents
}

// beta * self + alpha * a b in float32, for matrices and for batches of them.
at::Tensor sum_of(const at::Tensor& a, const at::Tensor& b, const at::Tensor& self,
                  const at::Scalar& beta, const at::Scalar& alpha) {
  const bool is_batch = a.dim() == 3;
  if (self.defined()) {
    return is_batch ? at::cpu::baddbmm(self, a, b, beta, alpha)
                    : at::cpu::addmm(self, a, b, beta, alpha);
  }
  at::Tensor sum = is_batch ? at::cpu::bmm(a, b) : at::cpu::mm(a, b);
  if (!alpha.equal(1)) sum.mul_(alpha);
  return sum;
}

// Whether all parts fit into panels, so that one call computes all.
bool is_small(const at::Tensor& a, const at::Tensor& b) {
  const int64_t batch = a.dim() == 3 ? a.size(0) : 1;
  const int64_t panel = panel_of(a.size(-1));
  return a.numel() <= panel && b.numel() <= panel && batch * a.size(-2) * b.size(-1) <= panel;
}

// `self`, undefined where it is not used, has the shape of `out`, if need be with strides of 0, and
// may be `out`.
void multiply(const at::Tensor& a, const at::Tensor& b, const at::Tensor& self,
              const at::Scalar& beta, const at::Scalar& alpha, const at::Tensor& out) {
  const int64_t rows = a.size(0), inner = a.size(1), columns = b.size(1);
  const at::Tensor whole_self = self.defined() ? small_self(self) : at::Tensor();
  const int64_t panel = panel_of(inner);
  const at::Tensor whole_a = is_converted_whole(a, b, out) ? to_float(a) : at::Tensor();
  const int64_t panel_columns = panel_length(panel, columns, std::max(inner, kLeast));
  const int64_t panel_rows =
      std::min(panel_length(panel, rows, std::min(columns, panel_columns)),
               whole_a.defined() ? rows : panel_length(panel, rows, std::max(inner, kLeast)));
  for (int64_t column = 0; column < columns; column += panel_columns) {
    const int64_t width = std::min(panel_columns, columns - column);
    const at::Tensor b_panel = to_float(b.narrow(1, column, width));
    for (int64_t row = 0; row < rows; row += panel_rows) {
      const int64_t height = std::min(panel_rows, rows - row);
      at::Tensor first;
      if (whole_self.defined()) {
        first = whole_self.narrow(0, row, height).narrow(1, column, width);
      } else if (self.defined()) {
        first = to_float(self.narrow(0, row, height).narrow(1, column, width));
      }
      const at::Tensor sum = sum_of(part(whole_a, a, 0, row, height), b_panel, first, beta, alpha);
      store_rounded(sum, out.narrow(0, row, height).narrow(1, column, width));
    }
  }
}

void multiply_batch(const at::Tensor& a, const at::Tensor& b, const at::Tensor& self,
                    const at::Scalar& beta, const at::Scalar& alpha, const at::Tensor& out) {
  const int64_t batch = a.size(0), rows = a.size(1), inner = a.size(2), columns = b.size(2);
  const int64_t largest = std::max({rows * inner, inner * columns, rows * columns});
  const int64_t length =
      std::clamp<int64_t>(kPanel / std::max<int64_t>(1, largest), 1, std::max<int64_t>(batch, 1));
  for (int64_t first = 0; first < batch; first += length) {
    const int64_t count = std::min(length, batch - first);
    if (largest > kWhole && count == 1) {
      multiply(a[first], b[first], self.defined() ? self[first] : self, beta, alpha, out[first]);
      continue;
    }
    const auto wide = [&](const at::Tensor& tensor) {
      return tensor.defined() ? to_float(tensor.narrow(0, first, count)) : tensor;
    };
    store_rounded(sum_of(wide(a), wide(b), wide(self), beta, alpha), out.narrow(0, first, count));
  }
}

void multiply_any(const at::Tensor& a, const at::Tensor& b, const at::Tensor& self,
                  const at::Scalar& beta, const at::Scalar& alpha, const at::Tensor& out) {
  if (a.dim() == 3) {
    multiply_batch(a, b, self, beta, alpha, out);
  } else {
    multiply(a, b, self, beta, alpha, out);
  }
}

}  // namespace

at::Tensor product(const at::Tensor& a, const at::Tensor& b, const at::Tensor& self,
                   const at::Scalar& beta, const at::Scalar& alpha) {
  const at::Tensor first = uses(self, beta) ? self : at::Tensor();
  if (is_small(a, b) && (!first.defined() || first.numel() <= kPanel)) {
    return round_to(a.scalar_type(),
                    sum_of(to_float(a), to_float(b), to_float(first), beta, alpha));
  }
  at::Tensor out = a.dim() == 3 ? at::empty({a.size(0), a.size(1), b.size(2)}, a.options())
                                : at::empty({a.size(0), b.size(1)}, a.options());
  multiply_any(a, b, first.defined() ? first.expand(out.sizes()) : first, beta, alpha, out);
  return out;
}

void product_into(const at::Tensor& self, const at::Tensor& a, const at::Tensor& b,
                  const at::Scalar& beta, const at::Scalar& alpha) {
  const at::Tensor first = uses(self, beta) ? self : at::Tensor();
  if (is_small(a, b)) {
    store_rounded(sum_of(to_float(a), to_float(b), to_float(first), beta, alpha), self);
  } else {
    multiply_any(a, b, first, beta, alpha, self);
  }
}

}  // namespace torchamp::ops::detail
