#pragma once
// What numpy leaves in pickles: scalars and arrays, as numbers and tensors.

#include <string>

#include <ATen/core/Tensor.h>

#include "torchamp/base/state_dict.h"
#include "torchamp/checkpoint/build_context.h"

namespace torchamp::checkpoint {

/// The bytes that `node` stands for, in any way Python writes them: bytes, bytearray, a str and how
/// to encode it. `what` names them in failures.
std::string bytes_of(BuildContext& context, const Node& node, const char* what);

namespace numpy {

/// Whether `node` is a scalar such as numpy.float32(1).
bool is_scalar(const Node& node);
/// Its value as Python's own type: bool, int, float, complex, bytes or str.
base::Value scalar(BuildContext& context, const Node& call);

/// Whether `node` is an array.
bool is_array(const Node& node);
/// A copy of it, where LibTorch has its dtype; in native byte order and C order.
at::Tensor array(BuildContext& context, const Node& call);

}  // namespace numpy
}  // namespace torchamp::checkpoint
