#pragma once
// MasterWeight: the rest of a float32 weight beside a bfloat16 or float16 parameter, found by the
// parameter. Knows no update rule.

#include <cstdint>
#include <memory>

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>

#include "torchamp/base/export.h"
#include "torchamp/kernels/storage.h"

namespace torchamp::optim::detail {

/// What makes one 16-bit parameter exact. Lives as long as the parameter, which owns it; whoever
/// holds the parameter's handle finds the same one, so optimizers and checkpoints agree.
///
/// bfloat16: the low 16 bits of each float32 and one tie bit (kernels/convert.h, SplitFloat), so
/// the parameter is always the nearest bfloat16 of its master. float16: a float32 copy.
///
/// A weight that was written by someone else since (a load, an EMA swap) is its own master again:
/// the rest is dropped at the next sync(). Seen by the tensor's version and by its memory, so not
/// where someone wrote through Tensor::data(), which has a version of its own. A parameter that
/// only went to another device, as Module::to() does, keeps its rest.
///
/// Threads: one at a time for one parameter.
class TORCHAMP_API MasterWeight {
 public:
  /// A master of the value that `parameter` has.
  ///
  /// Errors: as master_of().
  explicit MasterWeight(const at::Tensor& parameter);

  at::ScalarType dtype() const { return dtype_; }

  /// The parameter's arrays as kernels take them: kBf16WithRest or kF16WithCopy, in the parameter's
  /// order in memory, from its first element. As of the last sync().
  kernels::Stream stream() const;

  /// Whether sync() would keep everything as it is: nobody has written or moved the weight.
  bool is_of(const at::Tensor& parameter) const {
    return parameter.scalar_type() == dtype_ && change(parameter) == Change::kNone;
  }
  /// Drops the rest if the weight was written since note_written(). Call it before stream().
  ///
  /// Errors: c10::ValueError when the parameter has another dtype than dtype() now, or memory that
  ///         is not dense.
  void sync(const at::Tensor& parameter);
  /// The weight is as the master says: after a step, which has raised the version.
  void note_written(const at::Tensor& parameter);

  /// The exact float32 weight, with the parameter's sizes and strides; a new tensor. The weight
  /// itself where it was written since.
  at::Tensor to_float(const at::Tensor& parameter) const;
  /// Sets master and weight from float32 values of the parameter's sizes, on any device.
  void set(const at::Tensor& parameter, const at::Tensor& values);

 private:
  // The memory and the state of it that the rest belongs to.
  struct Seen {
    explicit Seen(const at::Tensor& parameter);
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;  // keeps its address from being used again
    int64_t storage_offset;
    at::Device device;
    at::DimVector sizes;
    at::DimVector strides;
    uint32_t version;
  };
  enum class Change { kNone, kWritten, kMoved };

  Change change(const at::Tensor& parameter) const;
  void drop_rest(const at::Tensor& parameter);

  at::ScalarType dtype_;
  Seen seen_;
  void* data_ = nullptr;
  at::Tensor rest_;
  at::Tensor ties_;
};

/// The master of `parameter`, nullptr when it has none or was given another dtype since. Thread
/// safe.
TORCHAMP_API std::shared_ptr<MasterWeight> find_master(const at::Tensor& parameter);
/// The master of `parameter`, made from the weight's own value when it has none. From then on a
/// second gradient is added in float32; see docs/master_weights.md. Thread safe.
///
/// Errors: c10::ValueError for another dtype than BFloat16 and Half, for a tensor that is no leaf,
///         an inference tensor, or memory that is not dense.
TORCHAMP_API std::shared_ptr<MasterWeight> master_of(const at::Tensor& parameter);
/// Ends the master of `parameter`, if it has one; the weight stays as it is. Thread safe.
TORCHAMP_API void drop_master(const at::Tensor& parameter);

}  // namespace torchamp::optim::detail
