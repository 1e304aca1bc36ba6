#include <chrono>
#include <cstring>

#include <ATen/record_function.h>

#include "bench/sides/side.h"

namespace torchamp::bench {
namespace {

using Clock = std::chrono::steady_clock;

// Below autocast's casts, so that those do not count.
constexpr const char* kMatrixOps[] = {
    "aten::mm",
    "aten::addmm",
    "aten::bmm",
    "aten::baddbmm",
    "aten::convolution",
    "aten::convolution_backward",
    "aten::_scaled_dot_product_flash_attention_for_cpu",
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward",
};

// A CPU's backward runs on the thread that asks for it, so one clock serves.
int depth = 0;
Clock::duration in_matrix_ops{};

struct Call : at::ObserverContext {
  Clock::time_point begin;
};

std::unique_ptr<at::ObserverContext> enter(const at::RecordFunction& function) {
  for (const char* name : kMatrixOps) {
    if (std::strcmp(function.name(), name) != 0) continue;
    ++depth;
    auto call = std::make_unique<Call>();
    call->begin = Clock::now();
    return call;
  }
  return nullptr;
}

void leave(const at::RecordFunction& /*function*/, at::ObserverContext* context) {
  if (context == nullptr) return;
  if (--depth == 0) in_matrix_ops += Clock::now() - static_cast<Call*>(context)->begin;
}

}  // namespace

double matrix_share(Side& side, int runs) {
  in_matrix_ops = {};
  const at::CallbackHandle handle = at::addThreadLocalCallback(
      at::RecordFunctionCallback(enter, leave).scopes({at::RecordScope::FUNCTION}));
  double total_ms = 0;
  for (int i = 0; i < runs; ++i) total_ms += side.run();
  at::removeCallback(handle);
  return std::chrono::duration<double, std::milli>(in_matrix_ops).count() / total_ms;
}

}  // namespace torchamp::bench
