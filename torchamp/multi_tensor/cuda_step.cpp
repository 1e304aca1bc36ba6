#include "torchamp/multi_tensor/cuda_step.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

namespace torchamp::multi_tensor {
namespace {

namespace cuda = kernels::cuda;

const cuda::Kernels* kernels_on_cpu = nullptr;

// The current stream as kernels take it; the host, where tests run the kernels, has none.
CUstream_st* current_stream(at::Device device) {
  if (device.is_cpu()) return nullptr;
  const c10::impl::VirtualGuardImpl guard(device.type());
  return static_cast<CUstream_st*>(guard.getStream(device).native_handle());
}

void check(const char* error, const char* what) {
  TORCH_CHECK(error == nullptr, "[fused step] ", what, " on the GPU failed: ", error,
              ". Was TorchAmp built for other GPUs (TORCHAMP_CUDA_ARCHITECTURES), or the device "
              "left in an error by an earlier operation? CUDA_LAUNCH_BLOCKING=1 shows which.");
}

bool is_captured(const cuda::Kernels& kernels, at::Device device) {
  bool result = false;
  check(kernels.is_capturing(current_stream(device), &result), "Asking for a capture");
  return result;
}

at::Tensor bytes_on(at::Device device, int64_t size) {
  return at::empty({std::max<int64_t>(size, 16)},
                   at::TensorOptions().dtype(at::kByte).device(device));
}

// Parts of one piece of memory, each at a multiple of 16 bytes.
class Layout {
 public:
  template <typename T>
  int64_t add(size_t count) {
    const int64_t begin = size_;
    size_ += (static_cast<int64_t>(count * sizeof(T)) + 15) / 16 * 16;
    return begin;
  }
  int64_t size() const { return size_; }

 private:
  int64_t size_ = 0;
};

// Chunks of float32 arithmetic, then those of float64; tells the arrays their first one.
std::vector<cuda::Chunk> cut(std::vector<cuda::Arrays>& arrays, int32_t& num_double_chunks) {
  std::vector<cuda::Chunk> chunks;
  num_double_chunks = 0;
  for (const bool is_double : {false, true}) {
    for (size_t i = 0; i < arrays.size(); ++i) {
      if ((arrays[i].param.storage == kernels::Storage::kF64) != is_double) continue;
      arrays[i].first_chunk = static_cast<int32_t>(chunks.size());
      const int64_t count = (arrays[i].count + cuda::kChunk - 1) / cuda::kChunk;
      for (int64_t index = 0; index < count; ++index) {
        chunks.push_back({static_cast<int32_t>(i), static_cast<int32_t>(index)});
      }
      if (is_double) num_double_chunks += static_cast<int32_t>(count);
    }
  }
  TORCH_CHECK(chunks.size() < static_cast<size_t>(std::numeric_limits<int32_t>::max()),
              "[fused step] ", chunks.size(), " pieces of ", cuda::kChunk,
              " elements are too many; fewer than 2^31 are accepted.");
  return chunks;
}

template <typename T>
void put(std::vector<char>& bytes, int64_t begin, const std::vector<T>& values) {
  if (!values.empty()) std::memcpy(bytes.data() + begin, values.data(), values.size() * sizeof(T));
}

}  // namespace

CudaStep::CudaStep(at::Device device)
    : device_(device), kernels_(device.is_cpu() ? kernels_on_cpu : &cuda::kernels()) {
  TORCH_CHECK(kernels_ != nullptr && kernels_->why_absent == nullptr, "[fused step] For ", device,
              ": ", kernels_ == nullptr ? "a GPU is needed" : kernels_->why_absent, ".");
}

bool CudaStep::is_capturing() const { return is_captured(*kernels_, device_); }

CudaStepResult CudaStep::run(CudaStepRequest& request) {
  const c10::OptionalDeviceGuard guard(device_.is_cpu() ? std::nullopt
                                                        : std::optional<at::Device>(device_));
  CUstream_st* stream = current_stream(device_);
  const bool capturing = is_capturing();
  TORCH_CHECK(!capturing || !request.found_inf.defined() || request.found_inf.device() == device_,
              "[fused step] A CUDA graph is being captured on ", device_, ", and found_inf is on ",
              request.found_inf.device(), "; one on ", device_,
              " is accepted, which replays read anew. Was the loss scaled on another device?");
  if (stream != stream_ && !capturing) {  // memory goes back to the stream that it was made on
    table_ = scratch_ = at::Tensor();
    bytes_.clear();
    stream_ = stream;
  }

  // 1. The table, as bytes.
  cuda::Tables tables;
  const std::vector<cuda::Chunk> chunks = cut(request.arrays, tables.num_double_chunks);
  Layout layout;
  const int64_t arrays_at = layout.add<cuda::Arrays>(request.arrays.size());
  const int64_t groups_at = layout.add<cuda::Numbers>(request.groups.size());
  const int64_t chunks_at = layout.add<cuda::Chunk>(chunks.size());
  std::vector<char> bytes(static_cast<size_t>(layout.size()), 0);
  put(bytes, arrays_at, request.arrays);
  put(bytes, groups_at, request.groups);
  put(bytes, chunks_at, chunks);

  // 2. Onto the device. A captured step must not lean on memory that a later one replaces.
  at::Tensor table = table_, scratch = scratch_;
  if (capturing) {
    table = bytes_on(device_, layout.size());
    check(kernels_->upload(table.data_ptr(), bytes.data(), bytes.size(), stream), "A copy");
  } else if (bytes != bytes_) {
    const bool is_first = !table.defined();
    if (is_first || table.numel() < layout.size()) table = bytes_on(device_, layout.size());
    if (is_first) {  // as a captured one, whose kernel the driver need not load during a capture
                     // then
      check(kernels_->upload(table.data_ptr(), bytes.data(), bytes.size(), stream), "A copy");
    } else {
      const at::Tensor staged = at::empty(
          {layout.size()}, at::TensorOptions().dtype(at::kByte).pinned_memory(!device_.is_cpu()));
      std::memcpy(staged.data_ptr(), bytes.data(), bytes.size());
      // The caching host allocator keeps the staged memory until the copy has run.
      table.narrow(0, 0, layout.size()).copy_(staged, /*non_blocking=*/true);
    }
    bytes_ = std::move(bytes);
    table_ = table;
  }
  Layout scratch_layout;
  const int64_t sums_at = scratch_layout.add<double>(2 * chunks.size());
  const int64_t flags_at = scratch_layout.add<uint32_t>(chunks.size());
  const int64_t rules_at = scratch_layout.add<cuda::Rule>(request.arrays.size());
  if (capturing || !scratch.defined() || scratch.numel() < scratch_layout.size()) {
    scratch = bytes_on(device_, scratch_layout.size());
    if (!capturing) scratch_ = scratch;
  }

  auto* table_bytes = static_cast<char*>(table.data_ptr());
  auto* scratch_bytes = static_cast<char*>(scratch.data_ptr());
  tables.arrays = reinterpret_cast<const cuda::Arrays*>(table_bytes + arrays_at);
  tables.groups = reinterpret_cast<const cuda::Numbers*>(table_bytes + groups_at);
  tables.chunks = reinterpret_cast<const cuda::Chunk*>(table_bytes + chunks_at);
  tables.num_arrays = static_cast<int32_t>(request.arrays.size());
  tables.num_chunks = static_cast<int32_t>(chunks.size());
  tables.has_amsgrad = std::any_of(request.groups.begin(), request.groups.end(),
                                   [](const cuda::Numbers& group) { return group.amsgrad; });
  tables.sums = reinterpret_cast<double*>(scratch_bytes + sums_at);
  tables.flags = reinterpret_cast<uint32_t*>(scratch_bytes + flags_at);
  tables.rules = reinterpret_cast<cuda::Rule*>(scratch_bytes + rules_at);

  // 3. The launches. Results are new tensors, since a caller may keep them.
  const auto options = at::TensorOptions().device(device_);
  const at::Tensor numbers = at::empty({2}, options.dtype(at::kFloat));
  const at::Tensor doubles = at::empty({2}, options.dtype(at::kDouble));
  CudaStepResult result;
  result.found_inf = numbers.select(0, 0);
  at::Tensor incoming;
  cuda::Decision decision;
  decision.measured = request.measures;
  decision.checked = request.checks;
  decision.clips = request.max_norm.has_value();
  decision.max_norm = request.max_norm.value_or(0.0);
  decision.has_doubles = std::any_of(
      request.arrays.begin(), request.arrays.end(),
      [](const cuda::Arrays& arrays) { return arrays.grad.storage == kernels::Storage::kF64; });
  decision.found_inf = numbers.data_ptr<float>();
  decision.norm = numbers.data_ptr<float>() + 1;
  decision.clip = doubles.data_ptr<double>();
  decision.double_norm = doubles.data_ptr<double>() + 1;
  if (request.found_inf.defined()) {
    incoming = request.found_inf.to(device_, at::kFloat, /*non_blocking=*/true);
    decision.incoming_found_inf = incoming.const_data_ptr<float>();
  }
  if (request.measures) {
    result.norm = decision.has_doubles ? doubles.select(0, 1) : numbers.select(0, 1);
    result.has_nan = at::empty({}, options.dtype(at::kBool));
    decision.has_nan = result.has_nan.data_ptr<bool>();
    check(kernels_->measure(tables, stream), "The look at the gradients");
  }
  check(kernels_->finish(tables, request.method, decision, stream), "The decision");
  check(kernels_->update(tables, request.method, decision.found_inf, decision.clip, stream),
        "The update");
  return result;
}

bool has_cuda_step(at::Device device) {
  if (device.is_cpu()) return kernels_on_cpu != nullptr;
  return device.is_cuda() && cuda::kernels().why_absent == nullptr;
}

bool is_capturing(at::Device device) {
  if (!has_cuda_step(device)) return false;
  const cuda::Kernels& kernels = device.is_cpu() ? *kernels_on_cpu : cuda::kernels();
  return kernels.why_absent == nullptr && is_captured(kernels, device);
}

void use_cuda_kernels_on_cpu(const cuda::Kernels* kernels) { kernels_on_cpu = kernels; }

}  // namespace torchamp::multi_tensor
