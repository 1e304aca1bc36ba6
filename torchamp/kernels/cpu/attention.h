#pragma once
// Attention of one head in bfloat16: forward and backward, in blocks, without the matrix of scores.
// FlashAttention-2 (Dao 2023, algorithms 1 and 2) for CPUs that multiply bfloat16 (avx512_bf16).

#include <cstdint>

namespace torchamp::kernels {

/// Rows of bfloat16 numbers; the elements of a row are adjacent.
struct Bf16Rows {
  uint16_t* data = nullptr;
  int64_t row_stride = 0;  ///< elements from one row to the next
};

/// What is added to the scaled products before the exponentials: -inf hides a key.
struct AttentionMask {
  const void* data = nullptr;  ///< null: there is none
  bool is_bf16 = false;        ///< else float32
  int64_t row_stride = 0;      ///< from one query to the next
  int64_t column_stride = 0;   ///< from one key to the next: 1, or 0 where all share a number
};

/// One head. Queries and keys have `head_size` elements, as have values and outputs.
struct AttentionHead {
  int64_t num_queries = 0;
  int64_t num_keys = 0;
  int64_t head_size = 0;   ///< a multiple of kHeadSizeStep, at most kMaxHeadSize
  bool is_causal = false;  ///< query i sees keys 0 to i
  float scale = 1.0F;      ///< of the products of queries and keys
  AttentionMask mask;
  Bf16Rows query, key, value, output;
  float* log_sum_exp = nullptr;  ///< of each query's scaled products
  int64_t log_sum_exp_stride = 1;
};

struct AttentionGrads {
  Bf16Rows grad_output;                       ///< read
  Bf16Rows grad_query, grad_key, grad_value;  ///< written
};

inline constexpr int64_t kHeadSizeStep = 16;
inline constexpr int64_t kMaxHeadSize = 256;

/// Products and sums are float32; the weights of the keys, and in the backward pass the gradients
/// of the scores, are rounded to bfloat16 before they are multiplied; results are rounded once.
/// bfloat16 numbers below the normal ones count as zero, as the CPU's instruction has it. A query
/// that sees no key has the output 0.
struct AttentionKernels {
  /// Bytes of scratch that one call needs, aligned to 64.
  int64_t (*forward_scratch)(const AttentionHead& head);
  int64_t (*backward_scratch)(const AttentionHead& head);
  /// Writes output and log_sum_exp.
  void (*forward)(const AttentionHead& head, void* scratch);
  void (*backward)(const AttentionHead& head, const AttentionGrads& grads, void* scratch);
};

/// Null where this CPU cannot multiply bfloat16, where it has AMX, which LibTorch's kernel uses and
/// these do not, and where TORCHAMP_CPU asks for less than avx512.
const AttentionKernels* attention_kernels();

}  // namespace torchamp::kernels
