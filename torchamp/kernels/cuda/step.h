#pragma once
// The CUDA kernels of an optimizer step: lists of arrays in, launches on a stream out. Plain types,
// so that a caller needs no CUDA header; nothing here waits for the device or allocates.
//
// A table of arrays and of chunks, equal pieces of them, lies in device memory; one thread block
// works on one chunk. What the host would have to wait for (found_inf, the clip factor, the counts
// of steps and what follows from them) stays on the device, where the next launch reads it.

#include <cstddef>
#include <cstdint>

#include "torchamp/kernels/formula/adam.h"
#include "torchamp/kernels/formula/lamb.h"
#include "torchamp/kernels/formula/sgd.h"
#include "torchamp/kernels/storage.h"

struct CUstream_st;  // what a cudaStream_t points to

namespace torchamp::kernels::cuda {

/// Elements of one thread block; a multiple of kBlock8. 16 rows of 512: a warp works on blocks of
/// kBlock8, and 20M parameters still give each of 132 multiprocessors 18 chunks.
inline constexpr int64_t kChunk = 8192;

/// A gradient: x * factor * second_factor, each product rounded to the arithmetic's type.
struct Gradient {
  Storage storage = Storage::kNone;      ///< kF32, kF64, kBf16 or kF16
  bool write_back = false;               ///< whether the product replaces x
  void* data = nullptr;                  ///< in the parameter's memory order
  void* measured = nullptr;              ///< the same numbers in the gradient's own order
  const float* factor = nullptr;         ///< on the device, of the loss scale; null: 1
  const float* second_factor = nullptr;  ///< on the device, of clipping before the step; null: 1
};

/// The arrays of one parameter. Adam: state holds exp_avg, exp_avg_sq, max_exp_avg_sq (kNone
/// without amsgrad); SGD: momentum_buffer (kNone without momentum); LAMB: exp_avg, exp_avg_sq.
///
/// The keys of streams that are rounded by chance are made on the device, from the group's seed,
/// the count of steps and `number`, so that replays of a CUDA graph differ; Stream::key is not
/// read.
struct Arrays {
  Gradient grad;
  Stream param;
  Stream state[3];
  int64_t count = 0;         ///< elements
  int64_t* steps = nullptr;  ///< on the device: steps applied so far; SGD: 0 makes this the first
  uint64_t number = 0;       ///< tells the parameters of an optimizer apart
  bool rounds_products = false;  ///< a complex parameter, as real numbers (AdamRule)
  int32_t group = 0;             ///< whose Numbers hold
  int32_t first_chunk = 0;       ///< of ceil(count / kChunk) in a row
};

/// The key of stream `which` of a parameter (0 to 2: its states, 3: itself) in one step, where
/// `step` counts the steps applied before.
TORCHAMP_KERNEL_FUNCTION uint64_t key_of_stream(uint64_t seed, uint64_t step, uint64_t number,
                                                uint64_t which) {
  return mix64(stream_key(seed, step, number) ^ which);
}

/// Elements [index * kChunk, (index + 1) * kChunk) of one entry of the arrays' table.
struct Chunk {
  int32_t array = 0;
  int32_t index = 0;
};

/// The options of one param group.
struct Numbers {
  double lr = 0.0;
  double beta1 = 0.0;
  double beta2 = 0.0;
  double eps = 0.0;
  double weight_decay = 0.0;
  double momentum = 0.0;
  double dampening = 0.0;
  uint64_t seed = 0;
  bool decoupled = false;
  bool amsgrad = false;
  bool nesterov = false;
};

enum class Method : uint8_t { kAdam, kSgd, kLamb };

/// The rule of one parameter in this step, made on the device.
struct Rule {
  AdamRule adam;
  SgdRule sgd;
  LambRule lamb;
  double lr = 0.0;
  double lamb_step = 0.0;  ///< lr |p| / |u|, once the norms are known
};

/// Device memory that a list's launches share. Chunks of float64 parameters come last.
struct Tables {
  const Arrays* arrays = nullptr;
  const Chunk* chunks = nullptr;
  const Numbers* groups = nullptr;
  int32_t num_arrays = 0;
  int32_t num_chunks = 0;
  int32_t num_double_chunks = 0;
  bool has_amsgrad = false;
  // Scratch: written and read within a step.
  double* sums = nullptr;     ///< 2 a chunk
  uint32_t* flags = nullptr;  ///< 1 a chunk
  Rule* rules = nullptr;      ///< 1 an array
};

/// What becomes of what measure() found. Pointers to device memory; null: not there.
struct Decision {
  bool measured = false;                      ///< whether measure() ran
  bool checked = false;                       ///< whether a non-finite gradient means a skip
  bool clips = false;                         ///< whether to clip to max_norm
  bool has_doubles = false;                   ///< the norm and its factor are taken in float64
  double max_norm = 0.0;                      ///< L2
  const float* incoming_found_inf = nullptr;  ///< not 0: skip
  float* found_inf = nullptr;                 ///< out: 0 or 1
  float* norm = nullptr;                      ///< out, where measured
  double* double_norm = nullptr;              ///< out, where measured
  double* clip = nullptr;                     ///< out: the clip factor, 1 without clipping
  bool* has_nan = nullptr;                    ///< out, where measured
};

/// The kernels of one build, as a value. Each function returns null, or what CUDA says is wrong.
struct Kernels {
  /// Null, or why this build has no CUDA kernels; the functions are null then.
  const char* why_absent = nullptr;
  /// Sums of squares and flags of gradients * factor * second_factor, into the tables' scratch.
  const char* (*measure)(const Tables& tables, CUstream_st* stream) = nullptr;
  /// Adds up what measure() left, in a fixed order, and decides; then raises the counts of steps
  /// unless skipped, and makes the rules of this step.
  const char* (*finish)(const Tables& tables, Method method, const Decision& decision,
                        CUstream_st* stream) = nullptr;
  /// Updates parameters and states, or nothing where found_inf is not 0; writes gradients back in
  /// both cases where that is asked for (a skipped step: without `clip`).
  const char* (*update)(const Tables& tables, Method method, const float* found_inf,
                        const double* clip, CUstream_st* stream) = nullptr;
  /// x <- x * factor * second_factor for every gradient, whatever write_back says.
  const char* (*multiply)(const Tables& tables, CUstream_st* stream) = nullptr;
  /// Copies host memory to the device as arguments of kernels, so that a captured CUDA graph holds
  /// the bytes and the host memory may go at once.
  const char* (*upload)(void* to, const void* from, size_t bytes, CUstream_st* stream) = nullptr;
  /// Whether `stream` is being captured into a CUDA graph.
  const char* (*is_capturing)(CUstream_st* stream, bool* result) = nullptr;
};

const Kernels& kernels();

}  // namespace torchamp::kernels::cuda
