#pragma once
// A small CUDA runtime on the host, found before NVIDIA's: the .cu files of the library compile
// with g++ against it and run, thread block after thread block, every thread as a fiber with its
// own stack. So tests run the very kernels and launches where there is no GPU: lane mapping,
// shuffles, barriers, shared memory and index arithmetic. Not shown: races between warps, and
// speed.
//
// A barrier or a shuffle that some thread of the warp or block never reaches is a failure here, not
// a hang.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <tuple>
#include <type_traits>
#include <utility>

#define __global__
#define __device__
#define __host__
#define __shared__ static
#define __forceinline__ inline
#define __launch_bounds__(threads)

using cudaStream_t = struct CUstream_st*;
enum cudaError_t { cudaSuccess = 0, cudaErrorInvalidValue = 1 };
enum cudaStreamCaptureStatus { cudaStreamCaptureStatusNone = 0, cudaStreamCaptureStatusActive = 1 };

struct dim3 {
  unsigned x, y, z;
  explicit dim3(unsigned x_count = 1, unsigned y_count = 1, unsigned z_count = 1)
      : x(x_count), y(y_count), z(z_count) {}
};
struct uint2 {
  unsigned x, y;
};
struct uint4 {
  unsigned x, y, z, w;
};

namespace emulated {

extern dim3 thread_index, block_index;
/// Whether streams say that they are being captured.
extern bool capturing;
/// Blocks that run first: true begins with the last one.
extern bool backwards;
extern int64_t num_launches;
/// The launch, counted by num_launches, that fails; and what a failure leaves behind until asked.
extern int64_t failing_launch;
extern cudaError_t last_error;

void barrier_of_block();
void barrier_of_warp();
/// Every thread of the warp puts in 8 bytes and takes those of thread `from`.
uint64_t exchange(uint64_t value, unsigned from);
void run(unsigned num_blocks, unsigned num_threads, const std::function<void()>& kernel);

template <typename Function, typename Tuple, size_t... kIndex>
void call(Function function, void** arguments, Tuple*, std::index_sequence<kIndex...>) {
  function(*static_cast<std::tuple_element_t<kIndex, Tuple>*>(arguments[kIndex])...);
}

}  // namespace emulated

#define threadIdx emulated::thread_index
#define blockIdx emulated::block_index

inline void __syncthreads() { emulated::barrier_of_block(); }
inline void __syncwarp() { emulated::barrier_of_warp(); }

template <typename T>
T __shfl_xor_sync(unsigned /*mask*/, T value, int other) {
  static_assert(sizeof(T) <= sizeof(uint64_t));
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  bits = emulated::exchange(bits, (emulated::thread_index.x % 32) ^ static_cast<unsigned>(other));
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// The wide accesses of a GPU need their own alignment; so they do here.
template <typename T>
T __ldca(const T* from) {
  if (reinterpret_cast<uintptr_t>(from) % sizeof(T) != 0) __builtin_trap();
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}
template <typename T>
void __stwb(T* to, T value) {
  if (reinterpret_cast<uintptr_t>(to) % sizeof(T) != 0) __builtin_trap();
  std::memcpy(to, &value, sizeof value);
}

template <typename... Parameters>
cudaError_t cudaLaunchKernel(void (*kernel)(Parameters...), dim3 blocks, dim3 threads,
                             void** arguments, size_t /*shared*/, cudaStream_t /*stream*/) {
  ++emulated::num_launches;
  if (blocks.x == 0 || threads.x == 0 || threads.x > 1024 ||
      emulated::num_launches == emulated::failing_launch) {
    return emulated::last_error = cudaErrorInvalidValue;
  }
  emulated::run(blocks.x, threads.x, [&] {
    emulated::call(kernel, arguments, static_cast<std::tuple<Parameters...>*>(nullptr),
                   std::index_sequence_for<Parameters...>());
  });
  return cudaSuccess;
}
inline cudaError_t cudaStreamIsCapturing(cudaStream_t /*stream*/, cudaStreamCaptureStatus* status) {
  *status = emulated::capturing ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
inline cudaError_t cudaGetLastError() { return std::exchange(emulated::last_error, cudaSuccess); }
inline const char* cudaGetErrorString(cudaError_t /*error*/) { return "invalid argument"; }
