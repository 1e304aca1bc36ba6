#pragma once
// ScaledMarks: which parameters' gradients still hold a loss scale. The place where who scales and
// who reads gradients meet; knows neither.

#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/UndefinedTensorImpl.h>
#include <c10/util/intrusive_ptr.h>

#include "torchamp/base/export.h"

namespace torchamp::multi_tensor {

/// The marks that one owner, a loss scaler, has set.
///
/// A mark holds its parameter weakly: it keeps no memory of it, and a new tensor at an old address
/// is not taken for the marked one.
///
/// Thread safety: all functions may run in several threads at once; a backward pass sets marks on
///                the threads of the autograd engine.
class TORCHAMP_API ScaledMarks : public std::enable_shared_from_this<ScaledMarks> {
 public:
  static std::shared_ptr<ScaledMarks> make();
  ~ScaledMarks();
  ScaledMarks(const ScaledMarks&) = delete;
  ScaledMarks& operator=(const ScaledMarks&) = delete;

  /// The gradients of `parameters` hold the factor `scale` (one element, any device) from now on.
  void add(const std::vector<at::Tensor>& parameters, const at::Tensor& scale);
  /// Those gradients are complete: a mark is reported only while its gradient is still this one.
  void note_gradients(const std::vector<at::Tensor>& parameters);
  /// The gradients of `parameters` hold it no more.
  void remove(const std::vector<at::Tensor>& parameters);
  /// No gradient does.
  void clear();
  /// Whether the gradient of `parameter` is marked.
  bool has(const at::Tensor& parameter) const;

 private:
  friend std::optional<double> report_scale_left_in(const std::vector<at::Tensor>&);
  using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

  ScaledMarks() = default;
  bool has_any(const std::vector<at::Tensor>& parameters) const;

  struct Mark {
    WeakTensor parameter;
    std::optional<WeakTensor> gradient;  // nothing while the backward pass is under way
  };

  std::unordered_map<const c10::TensorImpl*, Mark> marked_;
  at::Tensor scale_;
  bool is_reported_ = false;
  // The list of all owners.
  ScaledMarks* previous_ = nullptr;
  ScaledMarks* next_ = nullptr;
};

/// The scale that the gradient of some parameter still holds, once for each owner of marks; nothing
/// when there is none or it is 1.
///
/// Costs one load of an atomic while no gradient holds a scale. Reads the scale from its device
/// only where there is a mark to report.
TORCHAMP_API std::optional<double> report_scale_left_in(const std::vector<at::Tensor>& parameters);

}  // namespace torchamp::multi_tensor
