#pragma once
// OpKernel: one op with the kernel that may stand on one of its keys. OpTable: all of them.
// Internal.

#include <atomic>
#include <type_traits>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>

#include "torchamp/ops/before.h"

namespace torchamp::ops::detail {

/// What an op may be beside the usual.
struct OpTraits {
  /// LibTorch's kernel is slow, or absent, for want of fp16 arithmetic alone.
  bool is_for_cpus_without_fp16 = false;
  /// LibTorch composes the op of others, which autograd records: ours stands above autograd, too.
  bool is_composite = false;
  /// CPU; AutogradCPU for what is a sum of other ops in LibTorch; AutocastCPU to come before a
  /// cast.
  c10::DispatchKey key = c10::DispatchKey::CPU;
};

struct OpKernel {
  const char* name;           ///< "aten::addmm"
  const char* overload_name;  ///< "out", or empty
  const char* dtypes;         ///< whose tensors take ours: "float16", "float32, bfloat16"
  const char* reason;         ///< why LibTorch's own kernel gives way
  OpTraits traits;
  Before* before;
  c10::KernelFunction (*make)();
};

/// All that install() puts on, row by row.
class OpTable {
 public:
  /// `Op` is a struct of at::_ops; Kernel::call(keys, arguments) is the kernel, Kernel::before what
  /// it falls back on. `dtypes` and `reason` as in OpKernel.
  template <class Op, class Kernel>
  void add(const char* dtypes, const char* reason, OpTraits traits = {}) {
    using Pointer = c10::CompileTimeFunctionPointer<std::remove_pointer_t<decltype(&Kernel::call)>,
                                                    &Kernel::call>;
    kernels_.push_back({Op::name, Op::overload_name, dtypes, reason, traits, &Kernel::before,
                        [] { return c10::KernelFunction::makeFromUnboxedFunction(Pointer()); }});
  }

  const std::vector<OpKernel>& kernels() const { return kernels_; }

 private:
  std::vector<OpKernel> kernels_;
};

/// Whether install() is in force. Kernels on AutocastCPU ask: where an AutocastPolicy stands over
/// one, which calls it by its address, it stays registered.
inline std::atomic<bool> kernels_are_on = false;

inline constexpr const char* kFloat16 = "float16";
inline constexpr const char* k16Bit = "bfloat16, float16";
inline constexpr const char* kFloat32And16Bits = "float32, bfloat16, float16";

void add_matrix_products(OpTable& table);
void add_layers(OpTable& table);
void add_half_layers(OpTable& table);
void add_recurrent_layer(OpTable& table);
void add_half_losses(OpTable& table);
void add_batch_norm(OpTable& table);
void add_half_reductions(OpTable& table);
void add_half_composites(OpTable& table);
void add_half_elements(OpTable& table);
void add_half_more_layers(OpTable& table);
void add_smooth_l1(OpTable& table);
void add_group_norm(OpTable& table);
void add_row_sums(OpTable& table);
void add_picked_numbers(OpTable& table);
void add_softmax(OpTable& table);
void add_gelu(OpTable& table);
void add_layer_norm(OpTable& table);
void add_relu(OpTable& table);
void add_max_pool(OpTable& table);

}  // namespace torchamp::ops::detail
