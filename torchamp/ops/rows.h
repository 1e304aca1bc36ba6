#pragma once
// Tensors as the row kernels take them. Internal.

#include <algorithm>
#include <cstdint>

#include <ATen/core/Tensor.h>

#include "torchamp/kernels/cpu/row_ops.h"
#include "torchamp/ops/half_op.h"

namespace torchamp::ops::detail {

/// Whether a tensor is nothing but strided float32, bfloat16 or float16 numbers in CPU memory.
inline bool is_plain(const at::Tensor& tensor) {
  using Key = c10::DispatchKey;
  if (!tensor.defined() || tensor.layout() != at::kStrided || !tensor.device().is_cpu() ||
      has_names(tensor)) {
    return false;
  }
  constexpr c10::DispatchKeySet kMore({Key::Python, Key::PythonTLSSnapshot, Key::FuncTorchBatched,
                                       Key::FuncTorchGradWrapper, Key::Functionalize, Key::Negative,
                                       Key::Conjugate, Key::ZeroTensor});
  return !tensor.key_set().has_any(kMore);
}

inline bool is_plain_float(const at::Tensor& tensor) {
  if (!is_plain(tensor)) return false;
  const at::ScalarType dtype = tensor.scalar_type();
  return dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf;
}

inline kernels::Storage storage_of(at::ScalarType dtype) {
  if (dtype == at::kFloat) return kernels::Storage::kF32;
  return dtype == at::kBFloat16 ? kernels::Storage::kBf16 : kernels::Storage::kF16;
}

/// The rows of a contiguous tensor, `columns` numbers each.
inline kernels::Rows rows_of(const at::Tensor& tensor, int64_t columns) {
  kernels::Rows rows;
  rows.storage = storage_of(tensor.scalar_type());
  rows.data = const_cast<void*>(tensor.const_data_ptr());
  rows.stride = columns;
  return rows;
}

/// Rows that make up a task for a thread: 32768 numbers take some 10 us.
inline int64_t grain_of(int64_t columns) {
  return std::max<int64_t>(1, 32768 / std::max<int64_t>(1, columns));
}

}  // namespace torchamp::ops::detail
