#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>

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

bool is_matrix_op(const char* name) {
  return std::any_of(std::begin(kMatrixOps), std::end(kMatrixOps),
                     [name](const char* each) { return std::strcmp(each, name) == 0; });
}

struct Total {
  Clock::duration time{};
  int calls = 0;
};

// A CPU's backward runs on the thread that asks for it, so one of each serves.
std::map<std::string, Total> totals;
int open_matrix_ops = 0;

// An op that runs now. Time goes to the innermost, but within a matrix op all to that.
struct Call : at::ObserverContext {
  Call* outer = nullptr;
  const char* name = nullptr;
  bool is_matrix = false;
  bool is_counted = false;
  Clock::time_point begin;
  Clock::duration in_others{};
};
Call* innermost = nullptr;

std::unique_ptr<at::ObserverContext> enter(const at::RecordFunction& function) {
  auto call = std::make_unique<Call>();
  call->outer = innermost;
  call->name = function.name();
  call->is_counted = open_matrix_ops == 0;
  call->is_matrix = is_matrix_op(call->name);
  if (call->is_matrix) ++open_matrix_ops;
  innermost = call.get();
  call->begin = Clock::now();
  return call;
}

void leave(const at::RecordFunction& /*function*/, at::ObserverContext* context) {
  auto* call = static_cast<Call*>(context);
  const Clock::duration time = Clock::now() - call->begin;
  innermost = call->outer;
  if (call->is_matrix) --open_matrix_ops;
  if (!call->is_counted) return;
  Total& total = totals[call->name];
  total.time += time - call->in_others;
  ++total.calls;
  if (call->outer != nullptr) call->outer->in_others += time;
}

double milliseconds(Clock::duration time) {
  return std::chrono::duration<double, std::milli>(time).count();
}

}  // namespace

OpTimes op_times(Side& side, int runs) {
  totals.clear();
  const at::CallbackHandle handle = at::addThreadLocalCallback(
      at::RecordFunctionCallback(enter, leave).scopes({at::RecordScope::FUNCTION}));
  OpTimes times;
  double all = 0;
  for (int i = 0; i < runs; ++i) all += side.run();
  at::removeCallback(handle);
  times.run_ms = all / runs;
  double known = 0, in_matrix_ops = 0;
  for (const auto& [name, total] : totals) {
    const double ms = milliseconds(total.time);
    known += ms;
    if (is_matrix_op(name.c_str())) in_matrix_ops += ms;
    times.ops.push_back({name, ms / runs, total.calls / runs});
  }
  times.ops.push_back({"outside of ops", (all - known) / runs, 0});
  std::sort(times.ops.begin(), times.ops.end(),
            [](const OpTime& a, const OpTime& b) { return a.ms > b.ms; });
  times.matrix_share = in_matrix_ops / all;
  return times;
}

}  // namespace torchamp::bench
