#pragma once
// KernelTable: the CPU kernels of one instruction set, as a value with a name. Kernels take
// pointers and trust them; who calls has checked.

#include <cstdint>

#include "torchamp/kernels/cpu/image_ops.h"
#include "torchamp/kernels/cpu/product.h"
#include "torchamp/kernels/cpu/row_ops.h"
#include "torchamp/kernels/formula/adam.h"
#include "torchamp/kernels/formula/lamb.h"
#include "torchamp/kernels/formula/sgd.h"
#include "torchamp/kernels/storage.h"

namespace torchamp::kernels {

/// Elements [begin, end) of the arrays of one tensor. `begin` is a multiple of kBlock8.
struct Range {
  int64_t begin = 0;
  int64_t end = 0;
};

/// What one look at a range of a gradient tells. Non-finite elements make the sum so.
struct GradMeasure {
  double sum_of_squares =
      0.0;  ///< of x * factor * second_factor, in double: 16 partial sums, then a tree
  bool has_nonfinite = false;
  bool has_nan = false;
};

/// From where to where the estimate is taken: the normal numbers but the last 4095.
inline constexpr float kEstimatedFrom = 0x1p-126F, kEstimatedTo = 0x1.FFEp+127F;

/// Square roots of `count` numbers, in place.
struct RootFunctions {
  void (*of_floats)(int64_t count, float* x) = nullptr;  ///< null: IEEE roots in the lane
  void (*of_doubles)(int64_t count, double* x) = nullptr;
  bool floats_are_estimated = false;  ///< those of KernelTable::estimated_roots, not of_floats
};

struct AdamArrays {
  GradStream grad;
  Stream param;
  Stream exp_avg;
  Stream exp_avg_sq;
  Stream max_exp_avg_sq;  ///< kNone without amsgrad
  RootFunctions roots;
};

struct SgdArrays {
  GradStream grad;
  Stream param;
  Stream momentum_buffer;  ///< kNone without momentum
};

struct LambArrays {
  GradStream grad;
  Stream param;
  Stream exp_avg;
  Stream exp_avg_sq;
};

/// Sums of squares of weights and of directions.
struct LambNorms {
  double weight = 0.0;
  double direction = 0.0;
};

/// Kernels that compute the same bits, whatever the table.
struct KernelTable {
  const char* name;     ///< "scalar", "avx2", "avx512"
  bool (*runs_here)();  ///< whether this CPU has the instructions
  GradMeasure (*measure)(const GradStream& grad, Range range);
  /// x <- x * factor * second_factor, whatever write_back says.
  void (*multiply)(const GradStream& grad, Range range);
  void (*adam)(const AdamRule& rule, const AdamArrays& arrays, Range range);
  void (*sgd)(const SgdRule& rule, const SgdArrays& arrays, Range range);
  /// Updates the moments and returns the norms.
  LambNorms (*lamb_moments)(const LambRule& rule, const LambArrays& arrays, Range range);
  /// p <- p - step * direction
  void (*lamb_apply)(const LambRule& rule, const LambArrays& arrays, double step, Range range);
  /// Any storage to float32 (not kF64), and back.
  void (*read)(const Stream& from, Range range, float* to);
  void (*write)(const Stream& to, Range range, const float* from);
  /// Square roots in place: the CPU's estimate of 1 / sqrt(x) (rsqrtps), a step of Goldschmidt and
  /// one of Newton, no fused multiply-add; up to 0.75 units in the last place off. IEEE roots of
  /// what is outside of kEstimatedFrom to kEstimatedTo. These are the bits of MKL's roots on a CPU
  /// that is not Intel's.
  void (*estimated_roots)(int64_t count, float* x);
  ImageKernels image;
  RowKernels rows;
  ProductKernels products;
};

/// All tables of this build, the plainest first.
struct KernelTables {
  const KernelTable* const* first;
  int count;
  const KernelTable* const* begin() const { return first; }
  const KernelTable* const* end() const { return first + count; }
};
KernelTables cpu_tables();

/// The table in use: the one that TORCHAMP_CPU names when the process first asks, else the last
/// that runs here. `wrong_name` gets the value of TORCHAMP_CPU when no table of that name runs
/// here, else nullptr. Thread safe.
const KernelTable& cpu_table(const char** wrong_name = nullptr);

/// Makes `table` the one in use; for tests. Nothing may be running.
void use_cpu_table(const KernelTable& table);

}  // namespace torchamp::kernels
