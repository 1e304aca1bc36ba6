#include "torchamp/optim/master_weights.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/variable.h>

#include "torchamp/kernels/cpu/table.h"
#include "torchamp/multi_tensor/pending_factors.h"
#include "torchamp/optim/main_grad.h"
#include "torchamp/optim/split_tensor.h"

namespace torchamp::optim::detail {

// The tensor hook of a parameter that has a master: owns the master, and is how it is found. A
// named type outside of an anonymous namespace, so that two copies of this library in one process
// find each other's. Holds the parameter weakly: the parameter owns the hook.
struct MasterHook {
  std::shared_ptr<MasterWeight> master;
  c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> parameter;

  at::TensorBase operator()(const at::TensorBase& /*gradient*/) const {
    if (auto strong = parameter.lock()) widen_gradient(at::Tensor(std::move(strong)));
    return {};
  }
};

namespace {

// Guards lists of hooks against our own finding and adding; LibTorch's have no lock.
constinit std::mutex hooks_mutex;

constexpr int64_t kGrain = 32768;  // elements a thread: what a task costs is lost in them
static_assert(kGrain % kernels::kBlock8 == 0 && kGrain % 16 == 0);

uint32_t version_of(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->version_counter().current_version();
}

void check_can_have_master(const at::Tensor& parameter) {
  TORCH_CHECK_VALUE(parameter.defined(),
                    "[master weight] An undefined tensor came; a parameter is accepted.");
  TORCH_CHECK_VALUE(
      multi_tensor::is_16bit(parameter.scalar_type()), "[master weight] A parameter of dtype ",
      parameter.scalar_type(),
      " came; BFloat16 and Half are accepted. Was the module given another dtype after "
      "to_low_precision()?");
  TORCH_CHECK_VALUE(parameter.layout() == at::kStrided && parameter.is_non_overlapping_and_dense(),
                    "[master weight] A parameter of sizes ", parameter.sizes(),
                    " came whose memory has gaps or overlaps, or is sparse; dense memory is "
                    "accepted. Is it a slice or an expanded tensor? clone() it.");
  TORCH_CHECK_VALUE(!parameter.is_inference(),
                    "[master weight] A parameter that was made in inference mode came; one with a "
                    "version counter is accepted. Make the module outside of InferenceMode.");
  TORCH_CHECK_VALUE(parameter.is_leaf(),
                    "[master weight] A parameter came that is computed from others; a leaf is "
                    "accepted.");
}

void check_has_dtype(const at::Tensor& parameter, at::ScalarType dtype) {
  TORCH_CHECK_VALUE(parameter.scalar_type() == dtype, "[master weight] A parameter of dtype ",
                    parameter.scalar_type(), " came whose master is of a ", dtype,
                    " weight; the same dtype is accepted. Was the module given another dtype after "
                    "to_low_precision()?");
}

// A dense tensor's elements in the order of its memory, as one dimension.
at::Tensor in_memory_order(const at::Tensor& tensor) {
  return tensor.as_strided({tensor.numel()}, {1});
}

template <typename Visit>
void for_ranges(int64_t n, const Visit& visit) {
  at::parallel_for(0, (n + kGrain - 1) / kGrain, 1, [&](int64_t begin, int64_t end) {
    visit(kernels::Range{begin * kGrain, std::min(n, end * kGrain)});
  });
}

MasterHook* hook_of(const at::Tensor& parameter) {
  if (!parameter.defined()) return nullptr;
  const auto* meta = torch::autograd::impl::get_autograd_meta(parameter);
  if (meta == nullptr || meta->cpp_hooks_list_ == nullptr) return nullptr;
  for (auto& hook : *meta->cpp_hooks_list_) {
    if (auto* found = hook.target<MasterHook>()) return found;
  }
  return nullptr;
}

}  // namespace

MasterWeight::Seen::Seen(const at::Tensor& parameter)
    : storage(parameter.storage().getWeakStorageImpl()),
      storage_offset(parameter.storage_offset()),
      device(parameter.device()),
      sizes(parameter.sizes()),
      strides(parameter.strides()),
      version(version_of(parameter)) {}

MasterWeight::MasterWeight(const at::Tensor& parameter)
    : dtype_((check_can_have_master(parameter), parameter.scalar_type())), seen_(parameter) {
  drop_rest(parameter);
}

kernels::Stream MasterWeight::stream() const {
  kernels::Stream stream;
  stream.storage =
      dtype_ == at::kHalf ? kernels::Storage::kF16WithCopy : kernels::Storage::kBf16WithRest;
  stream.data = data_;
  stream.rest = rest_.data_ptr();
  stream.ties = ties_.defined() ? ties_.data_ptr<uint8_t>() : nullptr;
  return stream;
}

MasterWeight::Change MasterWeight::change(const at::Tensor& parameter) const {
  const bool has_same_values = version_of(parameter) == seen_.version;
  const bool has_same_shape =
      parameter.sizes() == seen_.sizes && parameter.strides() == seen_.strides;
  if (!has_same_values || !has_same_shape) return Change::kWritten;
  if (parameter.device() != seen_.device) return Change::kMoved;
  const bool has_same_memory =
      seen_.storage._unsafe_get_target() == parameter.storage().unsafeGetStorageImpl() &&
      seen_.storage_offset == parameter.storage_offset();
  return has_same_memory ? Change::kNone : Change::kWritten;
}

void MasterWeight::drop_rest(const at::Tensor& parameter) {
  const at::NoGradGuard no_grad;
  const c10::InferenceMode normal_tensors(false);
  const auto options = at::TensorOptions().device(parameter.device());
  const int64_t n = parameter.numel();
  if (dtype_ == at::kHalf) {
    rest_ = in_memory_order(parameter.detach()).to(at::kFloat);
  } else {
    rest_ = at::zeros({n}, options.dtype(at::kShort));
    ties_ = at::zeros({num_tie_bytes(n)}, options.dtype(at::kByte));
  }
  seen_ = Seen(parameter);
  data_ = parameter.mutable_data_ptr();
}

void MasterWeight::sync(const at::Tensor& parameter) {
  const Change what = change(parameter);
  if (what == Change::kNone && parameter.scalar_type() == dtype_) {
    data_ = parameter.mutable_data_ptr();
    return;
  }
  check_can_have_master(parameter);
  check_has_dtype(parameter, dtype_);
  if (what == Change::kMoved) {
    const at::NoGradGuard no_grad;
    rest_ = rest_.to(parameter.device());
    if (ties_.defined()) ties_ = ties_.to(parameter.device());
    seen_ = Seen(parameter);
    data_ = parameter.mutable_data_ptr();
    return;
  }
  if (parameter.sizes() == seen_.sizes && parameter.strides() != seen_.strides &&
      version_of(parameter) == seen_.version) {
    TORCH_WARN_ONCE(
        "[master weight] A parameter has got other strides since to_low_precision(), by set_data() "
        "as a change of the memory format does: its weight counts as newly loaded, and the rest of "
        "its float32 value is gone. Change the memory format before to_low_precision().");
  }
  drop_rest(parameter);
}

void MasterWeight::note_written(const at::Tensor& parameter) {
  seen_.version = version_of(parameter);
}

at::Tensor MasterWeight::to_float(const at::Tensor& parameter) const {
  const at::NoGradGuard no_grad;
  const Change what = change(parameter);
  if (what == Change::kWritten || parameter.scalar_type() != dtype_) {
    return parameter.detach().to(at::kFloat);
  }
  at::Tensor values = at::empty_strided(parameter.sizes(), parameter.strides(),
                                        parameter.options().dtype(at::kFloat));
  if (parameter.is_cpu() && what == Change::kNone) {
    const kernels::Stream from = stream();
    auto* to = values.mutable_data_ptr<float>();
    for_ranges(values.numel(), [&](kernels::Range range) {
      kernels::cpu_table().read(from, range, to + range.begin);
    });
    return values;
  }
  const auto device = parameter.device();
  const SplitTensor parts{in_memory_order(parameter.detach()).view(at::kShort), rest_.to(device),
                          ties_.defined() ? ties_.to(device) : at::Tensor()};
  in_memory_order(values).copy_(join_tensor(parts, dtype_));
  return values;
}

void MasterWeight::set(const at::Tensor& parameter, const at::Tensor& values) {
  TORCH_CHECK_VALUE(
      values.defined() && values.sizes() == parameter.sizes(), "[master weight] Values of sizes ",
      values.defined() ? values.sizes() : at::IntArrayRef(), " came for a parameter of sizes ",
      parameter.sizes(), "; the same sizes are accepted.");
  const at::NoGradGuard no_grad;
  check_has_dtype(parameter, dtype_);
  if (change(parameter) != Change::kNone) {  // all of the rest is written below
    check_can_have_master(parameter);
    drop_rest(parameter);
  }
  const at::Tensor floats = at::empty_strided(parameter.sizes(), parameter.strides(),
                                              parameter.options().dtype(at::kFloat));
  floats.copy_(values.detach());
  if (parameter.is_cpu()) {
    const kernels::Stream to = stream();
    const auto* from = floats.const_data_ptr<float>();
    for_ranges(floats.numel(), [&](kernels::Range range) {
      kernels::cpu_table().write(to, range, from + range.begin);
    });
    parameter.unsafeGetTensorImpl()->bump_version();
  } else {
    const SplitTensor parts = split_tensor(in_memory_order(floats), dtype_);
    in_memory_order(parameter.detach()).view(at::kShort).copy_(parts.weight);
    rest_.copy_(parts.rest);
    if (ties_.defined()) ties_.copy_(parts.ties);
  }
  note_written(parameter);
}

std::shared_ptr<MasterWeight> find_master(const at::Tensor& parameter) {
  const std::lock_guard lock(hooks_mutex);
  const MasterHook* hook = hook_of(parameter);
  if (hook == nullptr || hook->master->dtype() != parameter.scalar_type()) return nullptr;
  return hook->master;
}

std::shared_ptr<MasterWeight> master_of(const at::Tensor& parameter) {
  check_can_have_master(parameter);
  const std::lock_guard lock(hooks_mutex);
  MasterHook* hook = hook_of(parameter);
  if (hook != nullptr && hook->master->dtype() == parameter.scalar_type()) return hook->master;
  auto master = std::make_shared<MasterWeight>(parameter);
  if (hook != nullptr) {
    hook->master = master;
    return master;
  }
  // Tensor::register_hook() would refuse a frozen parameter, which may be thawed later.
  auto* meta = torch::autograd::impl::materialize_autograd_meta(parameter);
  if (meta->cpp_hooks_list_ == nullptr) torch::autograd::impl::create_cpp_hook(parameter);
  meta->cpp_hooks_list_->emplace_back(
      MasterHook{master, c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>(
                             parameter.getIntrusivePtr())});
  return master;
}

void drop_master(const at::Tensor& parameter) {
  std::shared_ptr<MasterWeight> last;  // freed after the lock
  const std::lock_guard lock(hooks_mutex);
  if (!parameter.defined()) return;
  const auto* meta = torch::autograd::impl::get_autograd_meta(parameter);
  if (meta == nullptr || meta->cpp_hooks_list_ == nullptr) return;
  for (auto& hook : *meta->cpp_hooks_list_) {
    if (auto* found = hook.target<MasterHook>()) {
      last = std::move(found->master);
      hook = nullptr;  // as Tensor::remove_hook() leaves it: other hooks keep their positions
      return;
    }
  }
}

}  // namespace torchamp::optim::detail
