// The launches behind step.h, with internal linkage: kernels of one build, made by make_kernels().

#pragma once

#include <cstring>
#include <utility>

#include "torchamp/kernels/cuda/lamb.cuh"
#include "torchamp/kernels/cuda/measure.cuh"
#include "torchamp/kernels/cuda/step.h"
#include "torchamp/kernels/cuda/update.cuh"

namespace torchamp::kernels::cuda {
namespace {

// Null, or the error in words. It is taken from the runtime, where LibTorch's next launch would
// find it and take it for its own.
const char* said(cudaError_t error) {
  if (error == cudaSuccess) return nullptr;
  cudaGetLastError();
  return cudaGetErrorString(error);
}

template <typename... Parameters, typename... Arguments>
const char* launch(void (*kernel)(Parameters...), int num_blocks, cudaStream_t stream,
                   Arguments&&... values) {
  if (num_blocks == 0) return nullptr;
  return [&](Parameters... arguments) {
    void* addresses[] = {&arguments...};
    return said(cudaLaunchKernel(kernel, dim3(static_cast<unsigned>(num_blocks)), dim3(kThreads),
                                 addresses, 0, stream));
  }(std::forward<Arguments>(values)...);
}

// Launches over the chunks of float32 arithmetic, then over those of float64.
template <typename OfFloats, typename OfDoubles, typename... Arguments>
const char* launch_both(OfFloats of_floats, OfDoubles of_doubles, const Tables& tables,
                        cudaStream_t stream, Arguments... arguments) {
  const int num_float_chunks = tables.num_chunks - tables.num_double_chunks;
  const char* error = launch(of_floats, num_float_chunks, stream, tables, 0, arguments...);
  if (error != nullptr) return error;
  return launch(of_doubles, tables.num_double_chunks, stream, tables, num_float_chunks,
                arguments...);
}

constexpr size_t kUploadBytes = 3840;  // arguments of a kernel may take 4 KiB on every GPU
struct Bytes {
  uint32_t words[kUploadBytes / 4];
};

__global__ void __launch_bounds__(kThreads) write_bytes(unsigned char* to, Bytes from, int count) {
  const auto* bytes = reinterpret_cast<const unsigned char*>(from.words);
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) to[i] = bytes[i];
}

const char* measure(const Tables& tables, CUstream_st* stream) {
  return launch_both(measure_chunks<float>, measure_chunks<double>, tables, stream);
}

const char* finish(const Tables& tables, Method method, const Decision& decision,
                   CUstream_st* stream) {
  return launch(finish_step, 1, stream, tables, method, decision);
}

const char* update(const Tables& tables, Method method, const float* found_inf, const double* clip,
                   CUstream_st* stream) {
  if (method == Method::kSgd) {
    return launch_both(sgd_chunks<float>, sgd_chunks<double>, tables, stream, found_inf, clip);
  }
  if (method == Method::kAdam) {
    return tables.has_amsgrad ? launch_both(adam_chunks<float, true>, adam_chunks<double, true>,
                                            tables, stream, found_inf, clip)
                              : launch_both(adam_chunks<float, false>, adam_chunks<double, false>,
                                            tables, stream, found_inf, clip);
  }
  const char* error = launch_both(lamb_moments_chunks<float>, lamb_moments_chunks<double>, tables,
                                  stream, found_inf, clip);
  if (error != nullptr) return error;
  error = launch(lamb_lengths, tables.num_arrays, stream, tables, found_inf);
  if (error != nullptr) return error;
  return launch_both(lamb_apply_chunks<float>, lamb_apply_chunks<double>, tables, stream,
                     found_inf);
}

const char* multiply(const Tables& tables, CUstream_st* stream) {
  return launch_both(multiply_chunks<float>, multiply_chunks<double>, tables, stream);
}

const char* upload(void* to, const void* from, size_t bytes, CUstream_st* stream) {
  const auto* source = static_cast<const unsigned char*>(from);
  auto* target = static_cast<unsigned char*>(to);
  for (size_t done = 0; done < bytes; done += kUploadBytes) {
    const size_t count = bytes - done < kUploadBytes ? bytes - done : kUploadBytes;
    Bytes piece;
    memcpy(piece.words, source + done, count);
    const char* error =
        launch(write_bytes, 1, stream, target + done, piece, static_cast<int>(count));
    if (error != nullptr) return error;
  }
  return nullptr;
}

const char* is_capturing(CUstream_st* stream, bool* result) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const cudaError_t error = cudaStreamIsCapturing(stream, &status);
  *result = status != cudaStreamCaptureStatusNone;
  return said(error);
}

constexpr Kernels make_kernels() {
  return {nullptr, measure, finish, update, multiply, upload, is_capturing};
}

}  // namespace
}  // namespace torchamp::kernels::cuda
