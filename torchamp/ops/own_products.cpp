#include "torchamp/ops/own_products.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <new>

#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <c10/util/SmallVector.h>

#include "torchamp/kernels/cpu/table.h"
#include "torchamp/ops/choice_table.h"
#include "torchamp/ops/convert.h"
#include "torchamp/ops/rows.h"

namespace torchamp::ops::detail {
namespace {

using kernels::Matrix16;
using kernels::Product;
using kernels::ProductPart;

// Multiply-adds up to which the kernel gains, measured on a Zen 5. In bfloat16 it is 2 to 7 times
// as fast as LibTorch's at 33x127x65 and below, and 1.5 times slower at 64x1024x10, where LibTorch
// multiplies pairs; of a vector, three times as fast at 512x512 and level at 1024x4096. Float16 is
// widened otherwise, at float32's speed less the copies; ours is 1.1 to 2.2 times as fast as
// float32 up to 1024x1024x1024, and steps of GPT (products of 2^30 to 2^33) go from 0.97 of
// float32's speed to 1.48, of the MLP from 0.99 to 1.22.
constexpr int64_t kMostBf16 = 1 << 19;
constexpr int64_t kMostBf16OfVector = 1 << 22;
constexpr int64_t kMostHalf = int64_t{1} << 36;
// An element is one chain of float32 sums, whose error grows with its length.
constexpr int64_t kLongestSum = 1 << 12;
constexpr int64_t kLongestSumOfVector = 1 << 14;
// Multiply-adds that make a task for a thread: some 10 us.
constexpr int64_t kGrain = 1 << 18;
constexpr int64_t kPartRows = 48, kPartColumns = 64;  // whole blocks of the kernel

// A matrix of each of a batch.
struct Matrices {
  Matrix16 first;
  int64_t batch_stride = 0;

  Matrix16 at(int64_t index) const {
    return {first.data + index * batch_stride, first.row_stride, first.column_stride};
  }
};

int64_t stride_from_right(const at::Tensor& tensor, int64_t place) {
  const int64_t dim = tensor.dim() - 1 - place;
  return dim < 0 || tensor.size(dim) == 1 ? 0 : tensor.stride(dim);
}

// Of a vector, its numbers are rows. What has size 1, or is not there, has stride 0.
Matrices matrices(const at::Tensor& tensor, void* data, bool is_vector) {
  Matrices result;
  result.first.data = static_cast<uint16_t*>(data);
  if (is_vector) {
    result.first.row_stride = stride_from_right(tensor, 0);
  } else {
    result.first.column_stride = stride_from_right(tensor, 0);
    result.first.row_stride = stride_from_right(tensor, 1);
    result.batch_stride = stride_from_right(tensor, 2);
  }
  return result;
}

Matrices matrices(const at::Tensor& tensor, bool is_vector) {
  return matrices(tensor, const_cast<void*>(tensor.const_data_ptr()), is_vector);
}

struct Sizes {
  int64_t batch, rows, inner, columns;

  Sizes(const at::Tensor& a, const at::Tensor& b)
      : batch(a.dim() == 3 ? a.size(0) : 1),
        rows(a.size(-2)),
        inner(a.size(-1)),
        columns(b.dim() == 1 ? 1 : b.size(-1)) {}
  int64_t work() const { return batch * rows * inner * columns; }
};

// The product of one pair of matrices. A matrix times a column is a row times the matrix.
struct Call {
  Product product;
  Matrices a, b, self, out;
  int64_t batch;

  Call(at::ScalarType dtype, const Sizes& sizes, const Matrices& left, const Matrices& right)
      : a(left), b(right), batch(sizes.batch) {
    product.storage = storage_of(dtype);
    product.rows = sizes.rows;
    product.inner = sizes.inner;
    product.columns = sizes.columns;
  }

  void turn() {
    std::swap(product.rows, product.columns);
    std::swap(a, b);
    for (Matrices* each : {&a, &b, &self, &out}) {
      std::swap(each->first.row_stride, each->first.column_stride);
    }
  }

  Product at(int64_t index) const {
    Product result = product;
    result.a = a.at(index);
    result.b = b.at(index);
    result.out = out.at(index);
    if (self.first.data != nullptr) result.self = self.at(index);
    return result;
  }
};

// Of this thread; grows to what the largest product needed.
float* scratch_of(int64_t count) {
  struct Free {
    void operator()(float* memory) const { ::operator delete (memory, std::align_val_t{64}); }
  };
  thread_local std::unique_ptr<float, Free> memory;
  thread_local int64_t size = 0;
  if (count > size) {
    memory.reset();
    memory.reset(static_cast<float*>(
        ::operator new (static_cast<size_t>(count) * sizeof(float), std::align_val_t{64})));
    size = count;
  }
  return memory.get();
}

void multiply(const Call& call) {
  const kernels::ProductKernels& kernels = kernels::cpu_table().products;
  const Product first = call.at(0);
  const int64_t rows = first.rows, columns = first.columns;
  const int64_t work = rows * std::max<int64_t>(1, first.inner) * columns;
  const int64_t scratch = kernels.scratch(first);
  if (work * call.batch < 2 * kGrain || at::get_num_threads() == 1) {
    float* memory = scratch_of(scratch);
    for (int64_t i = 0; i < call.batch; ++i) {
      kernels.multiply(call.at(i), {0, rows, 0, columns}, memory);
    }
    return;
  }
  // One product goes in parts by its longer side.
  const bool is_split = work > kGrain;
  const bool is_by_rows = is_split && rows > columns;
  const bool is_by_columns = is_split && !is_by_rows;
  const int64_t part_rows = is_by_rows ? kPartRows : rows;
  const int64_t part_columns = is_by_columns ? kPartColumns : columns;
  const int64_t parts = is_by_rows      ? (rows + kPartRows - 1) / kPartRows
                        : is_by_columns ? (columns + kPartColumns - 1) / kPartColumns
                                        : 1;
  const int64_t grain = std::max<int64_t>(1, kGrain * parts / work);
  at::parallel_for(0, call.batch * parts, grain, [&](int64_t begin, int64_t end) {
    float* memory = scratch_of(scratch);
    for (int64_t i = begin; i < end;) {
      // Neighbouring parts of a product at once: what the kernel widens serves them all.
      const int64_t index = i / parts, from = i % parts, to = std::min(parts, from + end - i);
      const ProductPart part{
          is_by_rows ? from * part_rows : 0,
          is_by_rows ? std::min(rows, to * part_rows) : rows,
          is_by_columns ? from * part_columns : 0,
          is_by_columns ? std::min(columns, to * part_columns) : columns,
      };
      kernels.multiply(call.at(index), part, memory);
      i += to - from;
    }
  });
}

void multiply_into(const at::Tensor& out, const at::Tensor& self, const at::Tensor& a,
                   const at::Tensor& b, const at::Scalar& beta, const at::Scalar& alpha) {
  if (out.numel() == 0) return;
  const bool is_vector = b.dim() == 1;
  const Sizes sizes(a, b);
  Call call(a.scalar_type(), sizes, matrices(a, false), matrices(b, is_vector));
  call.out = matrices(out, out.mutable_data_ptr(), is_vector);
  call.product.alpha = alpha.toFloat();
  if (self.defined() && beta.toDouble() != 0.0) {  // 0 * NaN is 0 here, as LibTorch documents
    call.self = matrices(self, is_vector);
    call.product.beta = beta.toFloat();
  }
  if (sizes.columns == 1) call.turn();
  multiply(call);
}

bool kernel_is_fast() {
  // The first table is plain C++: without an instruction for it a fused multiply-add is a call.
  return &kernels::cpu_table() != *kernels::cpu_tables().begin();
}

}  // namespace

bool takes_product(at::ScalarType dtype, const at::Tensor& a, const at::Tensor& b) {
  const Rule rule = rule_for(dtype);
  const bool may = dtype == at::kHalf ? rule.standing == Way::kFloat32 : rule.chooses;
  if (!may || !kernel_is_fast()) return false;
  const Sizes sizes(a, b);
  const bool has_vector = sizes.rows == 1 || sizes.columns == 1;
  const int64_t most = dtype == at::kHalf ? kMostHalf : has_vector ? kMostBf16OfVector : kMostBf16;
  return sizes.work() <= most && sizes.inner <= (has_vector ? kLongestSumOfVector : kLongestSum);
}

at::Tensor own_product(const at::Tensor& a, const at::Tensor& b, const at::Tensor& self,
                       const at::Scalar& beta, const at::Scalar& alpha) {
  c10::SmallVector<int64_t, 3> sizes(a.sizes().begin(), a.sizes().end() - 1);
  if (b.dim() != 1) sizes.push_back(b.size(-1));
  at::Tensor out = at::detail::empty_cpu(sizes, a.scalar_type());
  multiply_into(out, self, a, b, beta, alpha);
  return out;
}

void own_product_into(const at::Tensor& out, const at::Tensor& self, const at::Tensor& a,
                      const at::Tensor& b, const at::Scalar& beta, const at::Scalar& alpha) {
  multiply_into(out, self, a, b, beta, alpha);
}

}  // namespace torchamp::ops::detail
