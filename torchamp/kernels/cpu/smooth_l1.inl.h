// Smooth L1 and Huber losses of a RowKernels. Include after sixteen.inl.h.

namespace torchamp::kernels {
namespace {

// With z = x - y and s = min(|z|, beta), the loss is factor * s (|z| - s / 2): z^2 / 2 up to beta,
// a straight line beyond.
template <typename E>
struct SmoothL1 {
  SmoothL1(const SmoothL1Loss& loss)
      : x(static_cast<const E*>(loss.x)),
        y(static_cast<const E*>(loss.y)),
        beta(Lane<float>::all(loss.beta)),
        minus_beta(Lane<float>::all(-loss.beta)),
        factor(Lane<float>::all(loss.factor)) {}

  Sixteen distance(int64_t i, int64_t count) const {
    return load_16(x + i, count, 0.0F) - load_16(y + i, count, 0.0F);
  }
  Sixteen value(int64_t i, int64_t count) const {
    const Lane<float> half = Lane<float>::all(0.5);
    return map(
        [&](Lane<float> z) {
          const Lane<float> size = larger(Lane<float>::all(0) - z, z);  // NaN stays
          const Lane<float> short_part = smaller(beta, size);
          return short_part * (size - half * short_part) * factor;
        },
        distance(i, count));
  }
  Sixteen slope(int64_t i, int64_t count) const {
    return map([&](Lane<float> z) { return smaller(beta, larger(minus_beta, z)) * factor; },
               distance(i, count));
  }

  const E* x;
  const E* y;
  Lane<float> beta, minus_beta, factor;
};

void smooth_l1(const SmoothL1Loss& loss, void* out, int64_t count) {
  with_elements(loss.storage, [&]<typename E>(E*) {
    const SmoothL1<E> of(loss);
    E* to = static_cast<E*>(out);
    for_each_16(count, [&](int64_t i, int64_t n) { of.value(i, n).store(to + i, n); });
  });
}

double smooth_l1_sum(const SmoothL1Loss& loss, int64_t count) {
  double sum = 0.0;
  with_elements(loss.storage, [&]<typename E>(E*) {
    const SmoothL1<E> of(loss);
    sum = sum_over_row(count, [&](int64_t i, int64_t n) { return of.value(i, n); });
  });
  return sum;
}

void smooth_l1_backward(const SmoothL1Loss& loss, const void* grad, void* out, int64_t count) {
  with_elements(loss.storage, [&]<typename E>(E*) {
    const SmoothL1<E> of(loss);
    const E* from = static_cast<const E*>(grad);
    E* to = static_cast<E*>(out);
    for_each_16(count, [&](int64_t i, int64_t n) {
      const Sixteen slope = of.slope(i, n);
      (from == nullptr ? slope : slope * load_16(from + i, n, 0.0F)).store(to + i, n);
    });
  });
}

}  // namespace
}  // namespace torchamp::kernels
