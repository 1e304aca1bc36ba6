// GELU of a RowKernels. Include after sixteen.inl.h.

#include "torchamp/kernels/formula/gelu.h"

namespace torchamp::kernels {
namespace {

// f of a null pointer of the type of the formula.
template <typename F>
void with_gelu(bool is_tanh, F&& f) {
  if (is_tanh) return f(static_cast<TanhGelu<Lane<float>>*>(nullptr));
  f(static_cast<ErfGelu<Lane<float>>*>(nullptr));
}

void gelu(Storage storage, bool is_tanh, const void* x, void* out, int64_t count) {
  with_elements(storage, [&]<typename E>(E*) {
    const E* from = static_cast<const E*>(x);
    E* to = static_cast<E*>(out);
    with_gelu(is_tanh, [&]<typename Gelu>(Gelu*) {
      for_each_16(count, [&](int64_t i, int64_t n) {
        map([](Lane<float> lane) { return Gelu::value(lane); }, load_16(from + i, n, 0.0F))
            .store(to + i, n);
      });
    });
  });
}

void gelu_backward(Storage storage, bool is_tanh, const void* grad, const void* x, void* out,
                   int64_t count) {
  with_elements(storage, [&]<typename E>(E*) {
    const E* from_grad = static_cast<const E*>(grad);
    const E* from = static_cast<const E*>(x);
    E* to = static_cast<E*>(out);
    with_gelu(is_tanh, [&]<typename Gelu>(Gelu*) {
      for_each_16(count, [&](int64_t i, int64_t n) {
        const Sixteen slope = map([](Lane<float> lane) { return Gelu::derivative(lane); },
                                  load_16(from + i, n, 0.0F));
        (load_16(from_grad + i, n, 0.0F) * slope).store(to + i, n);
      });
    });
  });
}

}  // namespace
}  // namespace torchamp::kernels
