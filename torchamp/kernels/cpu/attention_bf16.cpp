// Attention on CPUs with avx512_bf16; compiled for them, so nothing here may run before
// attention_kernels() has looked. Without the standard library's templates: at -O0 the copy of such
// a function made here could become everyone's.

#include <immintrin.h>

#include "torchamp/kernels/cpu/attention.h"
#include "torchamp/kernels/cpu/bf16_product.inl.h"
#include "torchamp/kernels/cpu/lane_avx512.h"
#include "torchamp/kernels/formula/exponential.h"

namespace torchamp::kernels {
namespace {

constexpr int64_t kQueries = 60;       // of a block: ten tiles of six rows
constexpr int64_t kForwardKeys = 256;  // of a block: its scores (60 kB) stay in the second cache
constexpr int64_t kBackwardKeys = 128;

constexpr int64_t up_to_16(int64_t count) { return (count + 15) / 16 * 16; }
constexpr int64_t half_up(int64_t count) { return (count + 1) / 2; }

int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

uint16_t* row_of(const Bf16Rows& rows, int64_t index) {
  return rows.data + index * rows.row_stride;
}

__mmask16 first(int64_t count) {
  return static_cast<__mmask16>(count >= 16 ? 0xFFFFU : (1U << larger(count, 0)) - 1U);
}

__m512 exponential(__m512 x) { return kernels::exponential(Lane<float>{x}).x; }

void store(__m256i x, uint16_t* to) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), x); }

// What only the products read: numbers below the normal ones become zero, as they would there.
__m256i to_bf16(__m512 x) { return __builtin_bit_cast(__m256i, _mm512_cvtneps_pbh(x)); }

void store_pairs(__m256i low, __m256i high, uint32_t* words) {
  _mm512_storeu_si512(words, _mm512_or_si512(_mm512_cvtepu16_epi32(low),
                                             _mm512_slli_epi32(_mm512_cvtepu16_epi32(high), 16)));
}

__m512i words_of_16(const uint16_t* from) {
  return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}

// bfloat16 numbers of two rows as words: the first row's are the low halves.
void interleave(const uint16_t* first_row, const uint16_t* second_row, int64_t count,
                uint32_t* words) {
  for (int64_t i = 0; i < count; i += 16) {
    const __m512i low = words_of_16(first_row + i);
    const __m512i high =
        second_row == nullptr ? _mm512_setzero_si512() : words_of_16(second_row + i);
    _mm512_storeu_si512(words + i, _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
  }
}

// Rows as a right matrix whose sum goes over the rows: words[row / 2][element].
void pack_rows(const Bf16Rows& rows, int64_t begin, int64_t count, int64_t padded_count,
               int64_t length, uint32_t* words) {
  for (int64_t i = 0; i < padded_count; i += 2, words += length) {
    if (i < count) {
      interleave(row_of(rows, begin + i), i + 1 < count ? row_of(rows, begin + i + 1) : nullptr,
                 length, words);
    } else {
      __builtin_memset(words, 0, static_cast<size_t>(length) * sizeof(uint32_t));
    }
  }
}

// Rows as a right matrix whose sum goes along a row: words[pair of elements][row], `padded` rows.
void pack_transposed(const Bf16Rows& rows, int64_t begin, int64_t count, int64_t padded,
                     int64_t length, uint32_t* words) {
  const int64_t pairs = length / 2;
  for (int64_t i = 0; i < padded; ++i) {
    if (i >= count) {
      for (int64_t k = 0; k < pairs; ++k) words[k * padded + i] = 0;
      continue;
    }
    const auto* row = reinterpret_cast<const char*>(row_of(rows, begin + i));
    for (int64_t k = 0; k < pairs; ++k) __builtin_memcpy(words + k * padded + i, row + 4 * k, 4);
  }
}

// Rows copied side by side, so that a left matrix may read them as words, wherever they begin.
void copy_rows(const Bf16Rows& rows, int64_t begin, int64_t count, int64_t length, uint16_t* to) {
  for (int64_t i = 0; i < count; ++i) {
    __builtin_memcpy(to + i * length, row_of(rows, begin + i), static_cast<size_t>(length) * 2);
  }
}

// Numbers below the normal ones too, which the CPU's instruction drops.
void store_rounded(__m512 x, uint16_t* to) { Lane<float>{x}.to_bf16(to); }

void store_rows(const float* from, int64_t count, int64_t length, const Bf16Rows& to,
                int64_t begin) {
  for (int64_t i = 0; i < count; ++i) {
    uint16_t* row = row_of(to, begin + i);
    for (int64_t j = 0; j < length; j += 16) {
      store_rounded(_mm512_loadu_ps(from + i * length + j), row + j);
    }
  }
}

// Parts of the scratch, one after another, each at 64 bytes.
class Scratch {
 public:
  explicit Scratch(void* memory) : memory_(static_cast<char*>(memory)) {}
  template <class T>
  T* take(int64_t count) {
    T* part = memory_ == nullptr ? nullptr : reinterpret_cast<T*>(memory_ + size_);
    size_ += (count * static_cast<int64_t>(sizeof(T)) + 63) / 64 * 64;
    return part;
  }
  int64_t size() const { return size_; }

 private:
  char* memory_;  // null: only the size is wanted
  int64_t size_ = 0;
};

// The keys that a block of queries sees: those before `limit`.
int64_t key_limit(const AttentionHead& head, int64_t queries_end) {
  return head.is_causal ? smaller(head.num_keys, queries_end) : head.num_keys;
}
// How many of the keys from `begin` on the query sees, of `count`.
int64_t visible(const AttentionHead& head, int64_t query, int64_t begin, int64_t count) {
  return head.is_causal ? smaller(larger(query + 1 - begin, 0), count) : count;
}

struct ForwardScratch {
  ForwardScratch(const AttentionHead& head, void* memory) {
    Scratch scratch(memory);
    const int64_t length = head.head_size;
    keys = scratch.take<uint32_t>(up_to_16(head.num_keys) * length / 2);
    values = scratch.take<uint32_t>(up_to_16(head.num_keys) * length / 2);
    queries = scratch.take<uint16_t>(kQueries * length);
    scores = scratch.take<float>(kQueries * kForwardKeys);
    weights = scratch.take<uint16_t>(kQueries * kForwardKeys);
    output = scratch.take<float>(kQueries * length);
    size = scratch.size();
  }
  uint32_t* keys;    // a block after another: [head_size / 2][keys of the block]
  uint32_t* values;  // [num_keys / 2][head_size]
  uint16_t* queries;
  float* scores;
  uint16_t* weights;
  float* output;
  int64_t size;
};

// A row of a block: the scaled and masked products of a query with the keys that it sees.
struct RowOfScores {
  const float* products;
  int64_t seen;
  __m512 scale;
  AttentionMask mask;  // from the row's first key on

  RowOfScores(const AttentionHead& head, const float* products, int64_t query, int64_t first_key,
              int64_t seen)
      : products(products), seen(seen), scale(_mm512_set1_ps(head.scale)), mask(head.mask) {
    if (mask.data == nullptr) return;
    const int64_t at = query * mask.row_stride + first_key * mask.column_stride;
    mask.data = static_cast<const char*>(mask.data) + at * (mask.is_bf16 ? 2 : 4);
  }

  __m512 at(int64_t i, __mmask16 lanes) const {
    const __m512 x = _mm512_mul_ps(_mm512_maskz_loadu_ps(lanes, products + i), scale);
    return mask.data == nullptr ? x : _mm512_add_ps(x, mask_at(i, lanes));
  }

 private:
  __m512 mask_at(int64_t i, __mmask16 lanes) const {
    if (mask.column_stride == 0) {
      const __mmask16 one = 1;
      return _mm512_broadcastss_ps(_mm512_castps512_ps128(load(0, one)));
    }
    return load(i, lanes);
  }
  __m512 load(int64_t i, __mmask16 lanes) const {
    if (!mask.is_bf16) {
      return _mm512_maskz_loadu_ps(lanes, static_cast<const float*>(mask.data) + i);
    }
    const auto* from = static_cast<const uint16_t*>(mask.data) + i;
    return _mm512_castsi512_ps(
        _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes, from)), 16));
  }
};

constexpr float kLowest = -__builtin_inff();

float largest_of(const RowOfScores& row) {
  __m512 largest = _mm512_set1_ps(kLowest);
  for (int64_t i = 0; i < row.seen; i += 16) {
    const __mmask16 lanes = first(row.seen - i);
    largest = _mm512_mask_max_ps(largest, lanes, largest, row.at(i, lanes));
  }
  return _mm512_reduce_max_ps(largest);
}

// One row of a block of scores: the running maximum and sum, and the weights as bfloat16. Returns
// what earlier sums and outputs are multiplied by.
float soft_max_row(const RowOfScores& row, int64_t padded, float& maximum, float& sum,
                   uint16_t* weights) {
  const float largest = largest_of(row);
  const float next = maximum < largest ? largest : maximum;  // maximum where the other is nan
  const float factor = maximum == next ? 1.0F : __builtin_expf(maximum - next);
  // Where all that was seen is -inf the weights are 0, not e^(-inf + inf).
  const __m512 shift = _mm512_set1_ps(next == kLowest ? 0.0F : next);
  __m512 total = _mm512_setzero_ps();
  int64_t i = 0;
  for (; i < row.seen; i += 16) {
    const __mmask16 lanes = first(row.seen - i);
    const __m512 weight =
        _mm512_maskz_mov_ps(lanes, exponential(_mm512_sub_ps(row.at(i, lanes), shift)));
    total = _mm512_add_ps(total, weight);
    store(to_bf16(weight), weights + i);
  }
  for (; i < padded; i += 16) store(_mm256_setzero_si256(), weights + i);
  sum = sum * factor + _mm512_reduce_add_ps(total);
  maximum = next;
  return factor;
}

void forward(const AttentionHead& head, void* memory) {
  const ForwardScratch scratch(head, memory);
  const int64_t length = head.head_size;
  for (int64_t k = 0; k < head.num_keys; k += kForwardKeys) {
    const int64_t count = smaller(kForwardKeys, head.num_keys - k);
    pack_transposed(head.key, k, count, up_to_16(count), length, scratch.keys + k * length / 2);
  }
  pack_rows(head.value, 0, head.num_keys, up_to_16(head.num_keys), length, scratch.values);

  for (int64_t q = 0; q < head.num_queries; q += kQueries) {
    const int64_t rows = smaller(kQueries, head.num_queries - q);
    copy_rows(head.query, q, rows, length, scratch.queries);
    const LeftWords queries{reinterpret_cast<const uint32_t*>(scratch.queries), length / 2, 1};
    float maxima[kQueries], sums[kQueries];
    for (int64_t m = 0; m < rows; ++m) maxima[m] = kLowest;
    for (int64_t m = 0; m < rows; ++m) sums[m] = 0.0F;
    const int64_t limit = key_limit(head, q + rows);
    for (int64_t k = 0; k < limit; k += kForwardKeys) {
      const int64_t in_block = smaller(kForwardKeys, head.num_keys - k);
      const int64_t count = smaller(kForwardKeys, limit - k), padded = up_to_16(count);
      product(rows, padded, queries, scratch.keys + k * length / 2, up_to_16(in_block), length / 2,
              /*adds=*/false, scratch.scores, kForwardKeys);
      for (int64_t m = 0; m < rows; ++m) {
        const float factor =
            soft_max_row(RowOfScores(head, scratch.scores + m * kForwardKeys, q + m, k,
                                     visible(head, q + m, k, count)),
                         padded, maxima[m], sums[m], scratch.weights + m * kForwardKeys);
        if (k == 0 || factor == 1.0F) continue;
        float* row = scratch.output + m * length;
        for (int64_t j = 0; j < length; j += 16) {
          _mm512_storeu_ps(row + j,
                           _mm512_mul_ps(_mm512_loadu_ps(row + j), _mm512_set1_ps(factor)));
        }
      }
      const LeftWords weights{reinterpret_cast<const uint32_t*>(scratch.weights), kForwardKeys / 2,
                              1};
      product(rows, length, weights, scratch.values + k / 2 * length, length, padded / 2,
              /*adds=*/k > 0, scratch.output, length);
    }
    for (int64_t m = 0; m < rows; ++m) {
      if (maxima[m] == kLowest && sums[m] == 0.0F) {  // no key was seen
        maxima[m] = 0.0F;
        sums[m] = 1.0F;
      }
      const __m512 divisor = _mm512_set1_ps(sums[m]);
      for (int64_t j = 0; j < length; j += 16) {
        store_rounded(_mm512_div_ps(_mm512_loadu_ps(scratch.output + m * length + j), divisor),
                      row_of(head.output, q + m) + j);
      }
      head.log_sum_exp[(q + m) * head.log_sum_exp_stride] = maxima[m] + __builtin_logf(sums[m]);
    }
  }
}

struct BackwardScratch {
  BackwardScratch(const AttentionHead& head, void* memory) {
    Scratch scratch(memory);
    const int64_t length = head.head_size;
    const int64_t num_blocks = (head.num_queries + kQueries - 1) / kQueries;
    query_pairs = scratch.take<uint32_t>(num_blocks * half_up(kQueries) * length);
    grad_pairs = scratch.take<uint32_t>(num_blocks * half_up(kQueries) * length);
    grad_query = scratch.take<float>(head.num_queries * length);
    deltas = scratch.take<float>(head.num_queries);
    queries = scratch.take<uint16_t>(head.num_queries * length);
    grads = scratch.take<uint16_t>(head.num_queries * length);
    keys = scratch.take<uint32_t>(kBackwardKeys * length / 2);
    values = scratch.take<uint32_t>(kBackwardKeys * length / 2);
    key_pairs = scratch.take<uint32_t>(kBackwardKeys * length / 2);
    grad_key = scratch.take<float>(kBackwardKeys * length);
    grad_value = scratch.take<float>(kBackwardKeys * length);
    scores = scratch.take<float>(kQueries * kBackwardKeys);
    grad_weights = scratch.take<float>(kQueries * kBackwardKeys);
    weight_pairs = scratch.take<uint32_t>(half_up(kQueries) * kBackwardKeys);
    score_grad_pairs = scratch.take<uint32_t>(half_up(kQueries) * kBackwardKeys);
    score_grads = scratch.take<uint16_t>(kQueries * kBackwardKeys);
    size = scratch.size();
  }
  // Of the whole head.
  uint32_t *query_pairs, *grad_pairs;  // a block after another: [queries / 2][head_size]
  float* grad_query;
  float* deltas;  // the sum of grad_output * output of each query
  uint16_t *queries, *grads;
  // Of a block of keys.
  uint32_t *keys, *values;  // [head_size / 2][keys]
  uint32_t* key_pairs;      // [keys / 2][head_size]
  float *grad_key, *grad_value;
  // Of a block of queries and keys.
  float *scores, *grad_weights;
  uint32_t *weight_pairs, *score_grad_pairs;  // [queries / 2][keys]
  uint16_t* score_grads;                      // [queries][keys]
  int64_t size;
};

float dot(const uint16_t* a, const uint16_t* b, int64_t length) {
  __m512 sum = _mm512_setzero_ps();
  for (int64_t i = 0; i < length; i += 16) {
    const __m512 x = _mm512_castsi512_ps(_mm512_slli_epi32(words_of_16(a + i), 16));
    const __m512 y = _mm512_castsi512_ps(_mm512_slli_epi32(words_of_16(b + i), 16));
    sum = _mm512_fmadd_ps(x, y, sum);
  }
  return _mm512_reduce_add_ps(sum);
}

// Weights and gradients of scores of one query: what a block's matrices are made of.
struct RowOfBlock {
  RowOfScores scores;
  const float* grad_weights;
  __m512 log_sum_exp, delta;

  void at(int64_t i, __m512& weight, __m512& score_grad) const {
    const __mmask16 lanes = first(scores.seen - i);
    weight =
        _mm512_maskz_mov_ps(lanes, exponential(_mm512_sub_ps(scores.at(i, lanes), log_sum_exp)));
    const __m512 grad = _mm512_maskz_loadu_ps(lanes, grad_weights + i);
    score_grad =
        _mm512_maskz_mul_ps(lanes, _mm512_mul_ps(weight, _mm512_sub_ps(grad, delta)), scores.scale);
  }
};

// The weights and the gradients of the scores of a block, from its scores and the gradients of its
// weights.
void differentiate(const AttentionHead& head, const BackwardScratch& scratch, int64_t q,
                   int64_t rows, int64_t k, int64_t count, int64_t padded) {
  const auto row = [&](int64_t m) {
    const bool exists = m < rows;
    const int64_t query = exists ? q + m : q;
    return RowOfBlock{RowOfScores(head, scratch.scores + (query - q) * kBackwardKeys, query, k,
                                  exists ? visible(head, query, k, count) : 0),
                      scratch.grad_weights + (query - q) * kBackwardKeys,
                      _mm512_set1_ps(head.log_sum_exp[query * head.log_sum_exp_stride]),
                      _mm512_set1_ps(scratch.deltas[query])};
  };
  for (int64_t m = 0; m < rows; m += 2) {
    const RowOfBlock even = row(m), odd = row(m + 1);
    for (int64_t i = 0; i < padded; i += 16) {
      __m512 weight[2], score_grad[2];
      even.at(i, weight[0], score_grad[0]);
      odd.at(i, weight[1], score_grad[1]);
      const int64_t at = m / 2 * kBackwardKeys + i;
      store_pairs(to_bf16(weight[0]), to_bf16(weight[1]), scratch.weight_pairs + at);
      const __m256i grad[2] = {to_bf16(score_grad[0]), to_bf16(score_grad[1])};
      store_pairs(grad[0], grad[1], scratch.score_grad_pairs + at);
      store(grad[0], scratch.score_grads + m * kBackwardKeys + i);
      if (m + 1 < rows) store(grad[1], scratch.score_grads + (m + 1) * kBackwardKeys + i);
    }
  }
}

void backward(const AttentionHead& head, const AttentionGrads& grads, void* memory) {
  const BackwardScratch scratch(head, memory);
  const int64_t length = head.head_size, pairs = length / 2;
  copy_rows(head.query, 0, head.num_queries, length, scratch.queries);
  copy_rows(grads.grad_output, 0, head.num_queries, length, scratch.grads);
  __builtin_memset(scratch.grad_query, 0,
                   static_cast<size_t>(head.num_queries * length) * sizeof(float));
  for (int64_t q = 0; q < head.num_queries; ++q) {
    scratch.deltas[q] = dot(row_of(grads.grad_output, q), row_of(head.output, q), length);
  }
  const auto block_of = [&](uint32_t* all, int64_t q) {
    return all + q / kQueries * half_up(kQueries) * length;
  };
  for (int64_t q = 0; q < head.num_queries; q += kQueries) {
    const int64_t rows = smaller(kQueries, head.num_queries - q), padded = 2 * half_up(rows);
    pack_rows(head.query, q, rows, padded, length, block_of(scratch.query_pairs, q));
    pack_rows(grads.grad_output, q, rows, padded, length, block_of(scratch.grad_pairs, q));
  }

  for (int64_t k = 0; k < head.num_keys; k += kBackwardKeys) {
    const int64_t in_block = smaller(kBackwardKeys, head.num_keys - k);
    const int64_t all_padded = up_to_16(in_block);
    pack_transposed(head.key, k, in_block, all_padded, length, scratch.keys);
    pack_transposed(head.value, k, in_block, all_padded, length, scratch.values);
    pack_rows(head.key, k, in_block, all_padded, length, scratch.key_pairs);
    const auto bytes = static_cast<size_t>(in_block * length) * sizeof(float);
    __builtin_memset(scratch.grad_key, 0, bytes);
    __builtin_memset(scratch.grad_value, 0, bytes);

    // The first block of queries that sees a key of this block.
    const int64_t begin = head.is_causal ? k / kQueries * kQueries : 0;
    for (int64_t q = begin; q < head.num_queries; q += kQueries) {
      const int64_t rows = smaller(kQueries, head.num_queries - q);
      const int64_t count = smaller(in_block, key_limit(head, q + rows) - k);
      if (count <= 0) continue;
      const int64_t padded = up_to_16(count);
      const auto* queries = reinterpret_cast<const uint32_t*>(scratch.queries + q * length);
      const auto* grad = reinterpret_cast<const uint32_t*>(scratch.grads + q * length);
      product(rows, padded, {queries, pairs, 1}, scratch.keys, all_padded, pairs, /*adds=*/false,
              scratch.scores, kBackwardKeys);
      product(rows, padded, {grad, pairs, 1}, scratch.values, all_padded, pairs, /*adds=*/false,
              scratch.grad_weights, kBackwardKeys);
      differentiate(head, scratch, q, rows, k, count, padded);
      product(count, length, {scratch.weight_pairs, 1, kBackwardKeys},
              block_of(scratch.grad_pairs, q), length, half_up(rows), /*adds=*/true,
              scratch.grad_value, length);
      product(count, length, {scratch.score_grad_pairs, 1, kBackwardKeys},
              block_of(scratch.query_pairs, q), length, half_up(rows), /*adds=*/true,
              scratch.grad_key, length);
      const auto* score_grads = reinterpret_cast<const uint32_t*>(scratch.score_grads);
      product(rows, length, {score_grads, kBackwardKeys / 2, 1}, scratch.key_pairs, length,
              padded / 2, /*adds=*/true, scratch.grad_query + q * length, length);
    }
    store_rows(scratch.grad_key, in_block, length, grads.grad_key, k);
    store_rows(scratch.grad_value, in_block, length, grads.grad_value, k);
  }
  store_rows(scratch.grad_query, head.num_queries, length, grads.grad_query, 0);
}

int64_t forward_scratch(const AttentionHead& head) { return ForwardScratch(head, nullptr).size; }
int64_t backward_scratch(const AttentionHead& head) { return BackwardScratch(head, nullptr).size; }

}  // namespace

extern const AttentionKernels attention_bf16_table;
constinit const AttentionKernels attention_bf16_table = {forward_scratch, backward_scratch, forward,
                                                         backward};

}  // namespace torchamp::kernels
