#pragma once
// Calls any op by its name in the dispatcher, with arguments described in JSON.
// tests/golden/op_recipes.py describes the language, and does the same in Python.

#include <array>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/torch.h>

namespace torchamp::testing {

/// The op "name.overload/variant" of aten.
///
/// Errors: c10::Error when the running LibTorch has none of that name.
c10::OperatorHandle find_op(const std::string& name);

/// Whether the running LibTorch has it.
bool has_op(const std::string& name);

/// The arguments of one call.
struct OpArguments {
  torch::jit::Stack stack;
  /// The floating tensors among them, in order.
  std::vector<at::Tensor> leaves;
};

/// Builds fresh arguments for `op` from a recipe: the first floating tensor has dtypes[0], the
/// others dtypes[1].
OpArguments op_arguments(const c10::OperatorHandle& op, const nlohmann::json& recipe,
                         const std::array<at::ScalarType, 2>& dtypes, at::Device device = at::kCPU);

/// "float32" and the like, as Python names dtypes.
at::ScalarType dtype_of(const std::string& name);

/// One letter each, as make_op_table.py has them; '-' for an undefined tensor, '?' for a dtype
/// without letter.
char letter(const at::Tensor& tensor);

/// The first line of what `error` says, as Python shows it: without LibTorch's backtrace, and with
/// "torch.FloatTensor" for LibTorch's "CPUFloatType", since Python renames the types in every text.
std::string first_line(const std::exception& error);

}  // namespace torchamp::testing
