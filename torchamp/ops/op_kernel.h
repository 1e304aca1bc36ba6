#pragma once
// OpKernel: one op with the kernel that may stand on one of its keys. The tables of them. Internal.

#include <atomic>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>

#include "torchamp/ops/before.h"

namespace torchamp::ops::detail {

struct OpKernel {
  const char* name;           ///< "aten::addmm"
  const char* overload_name;  ///< "out", or empty
  const char* dtypes;         ///< whose tensors take ours: "float16", "float32, bfloat16"
  const char* reason;         ///< why LibTorch's own kernel gives way
  /// LibTorch's kernel is slow, or absent, for want of fp16 arithmetic alone.
  bool is_for_cpus_without_fp16;
  Before* before;
  c10::KernelFunction (*make)();
  /// LibTorch composes the op of others, which autograd records: ours stands above autograd, too.
  bool is_composite = false;
  /// CPU; AutogradCPU for what is a sum of other ops in LibTorch; AutocastCPU to come before a
  /// cast.
  c10::DispatchKey key = c10::DispatchKey::CPU;
};

/// Whether install() is in force. Kernels on AutocastCPU ask: where an AutocastPolicy stands over
/// one, which calls it by its address, it stays registered.
inline std::atomic<bool> kernels_are_on = false;

/// `Op` is a struct of at::_ops; Kernel::call(keys, arguments) is the kernel, Kernel::before what
/// it falls back on.
template <class Op, class Kernel>
OpKernel op_kernel(const char* dtypes, const char* reason, bool is_for_cpus_without_fp16,
                   c10::DispatchKey key = c10::DispatchKey::CPU) {
  return {Op::name,
          Op::overload_name,
          dtypes,
          reason,
          is_for_cpus_without_fp16,
          &Kernel::before,
          [] {
            return c10::KernelFunction::makeFromUnboxedFunction(
                c10::CompileTimeFunctionPointer<std::remove_pointer_t<decltype(&Kernel::call)>,
                                                &Kernel::call>());
          },
          /*is_composite=*/false,
          key};
}

inline constexpr const char* kFloat16 = "float16";
inline constexpr const char* kImageDtypes = "float32, bfloat16, float16";
inline constexpr const char* k16Bit = "float16, bfloat16";
inline constexpr const char* kFloat32And16Bits = "float32, bfloat16, float16";

void add_matrix_products(std::vector<OpKernel>& table);
void add_layers(std::vector<OpKernel>& table);
void add_half_layers(std::vector<OpKernel>& table);
void add_recurrent_layer(std::vector<OpKernel>& table);
void add_half_losses(std::vector<OpKernel>& table);
void add_batch_norm(std::vector<OpKernel>& table);
void add_half_reductions(std::vector<OpKernel>& table);
void add_half_composites(std::vector<OpKernel>& table);
void add_half_elements(std::vector<OpKernel>& table);
void add_half_more_layers(std::vector<OpKernel>& table);
void add_smooth_l1(std::vector<OpKernel>& table);
void add_group_norm(std::vector<OpKernel>& table);
void add_row_sums(std::vector<OpKernel>& table);
void add_picked_numbers(std::vector<OpKernel>& table);
void add_softmax(std::vector<OpKernel>& table);
void add_gelu(std::vector<OpKernel>& table);
void add_layer_norm(std::vector<OpKernel>& table);
void add_relu(std::vector<OpKernel>& table);
void add_max_pool(std::vector<OpKernel>& table);

}  // namespace torchamp::ops::detail
