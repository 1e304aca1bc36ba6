#include "torchamp/multi_tensor/device_read.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace torchamp::multi_tensor {

DeviceRead::DeviceRead(const std::vector<at::Tensor>& scalars) {
  std::vector<at::Tensor> doubles;
  doubles.reserve(scalars.size());
  for (const at::Tensor& scalar : scalars) {
    doubles.push_back(scalar.detach().to(at::kDouble).reshape({}));
  }
  const at::Tensor packed = at::stack(doubles);
  if (packed.device().is_cpu()) {
    host_ = packed;
    return;
  }
  // Only a copy to pinned memory runs without the host waiting for it.
  host_ = at::empty(packed.sizes(), at::TensorOptions().dtype(at::kDouble).pinned_memory(true));
  host_.copy_(packed, /*non_blocking=*/true);
  const c10::impl::VirtualGuardImpl device(packed.device().type());
  copied_.emplace(packed.device().type());
  copied_->record(device.getStream(packed.device()));
}

bool DeviceRead::has_arrived() const { return !copied_ || copied_->query(); }

std::vector<double> DeviceRead::get() {
  if (copied_) copied_->synchronize();
  const double* data = host_.const_data_ptr<double>();
  return std::vector<double>(data, data + host_.numel());
}

}  // namespace torchamp::multi_tensor
