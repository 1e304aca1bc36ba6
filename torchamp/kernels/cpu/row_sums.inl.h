// Sums of rows of a RowKernels, number by number. Include after sixteen.inl.h.

namespace torchamp::kernels {
namespace {

void add_row(Storage storage, const void* x, float factor, float* sums, int64_t count) {
  with_elements(storage, [&]<typename E>(E*) {
    const E* from = static_cast<const E*>(x);
    const Sixteen factors = Sixteen::all(factor);
    for_each_16(count, [&](int64_t i, int64_t n) {
      fma(load_16(from + i, n, 0.0F), factors, load_16(sums + i, n, 0.0F)).store(sums + i, n);
    });
  });
}

void scale_and_add_row(Storage storage, const void* x, float of_x, const float* y, float of_y,
                       void* out, int64_t count) {
  with_elements(storage, [&]<typename E>(E*) {
    const E* from = static_cast<const E*>(x);
    E* to = static_cast<E*>(out);
    const Sixteen factor_of_x = Sixteen::all(of_x), factor_of_y = Sixteen::all(of_y);
    for_each_16(count, [&](int64_t i, int64_t n) {
      const Sixteen product = load_16(y + i, n, 0.0F) * factor_of_y;
      (from == nullptr ? product : fma(load_16(from + i, n, 0.0F), factor_of_x, product))
          .store(to + i, n);
    });
  });
}

}  // namespace
}  // namespace torchamp::kernels
