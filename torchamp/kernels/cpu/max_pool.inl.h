// Max pooling over pixels of channels. Include once in a file, after image_lane.inl.h.

#include "torchamp/kernels/cpu/image_lane.inl.h"

namespace torchamp::kernels {
namespace {
namespace image {

constexpr int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// Where a window begins and ends along one side of the image. One that begins in the padding
// begins at its first step inside.
struct Window {
  Window(int64_t output, int64_t stride, int64_t padding, int64_t kernel, int64_t dilation,
         int64_t size)
      : first(output * stride - padding),
        last(smaller(first + (kernel - 1) * dilation + 1, size)),
        step(dilation) {
    while (first < 0) first += step;
  }
  int64_t first, last, step;
};

template <Storage kStorage, int kLanes>
void max_of_window(const void* image, const MaxPool& pool, const Window& vertical,
                   const Window& horizontal, int64_t c, void* y, int64_t* indices, int64_t to) {
  L largest[kLanes], place[kLanes];
  for (int i = 0; i < kLanes; ++i) {
    largest[i] = L::all(-__builtin_inf());
    place[i] = L::all(static_cast<double>(vertical.first * pool.width + horizontal.first));
  }
  for (int64_t row = vertical.first; row < vertical.last; row += vertical.step) {
    for (int64_t column = horizontal.first; column < horizontal.last; column += horizontal.step) {
      const int64_t pixel = row * pool.width + column;
      const L here = L::all(static_cast<double>(pixel));
      for (int i = 0; i < kLanes; ++i) {
        take_larger(load<kStorage>(image, pixel * pool.channels + c + i * kWidth), here, largest[i],
                    place[i]);
      }
    }
  }
  for (int i = 0; i < kLanes; ++i) {
    store<kStorage>(largest[i], y, to + c + i * kWidth);
    store_whole(place[i], indices + to + c + i * kWidth);
  }
}

template <Storage kStorage>
void max_pool_rows(const MaxPool& pool, const void* x, void* y, int64_t* indices, Range rows) {
  const int64_t bytes_of_image =
      pool.height * pool.width * pool.channels * bytes_per_element(kStorage);
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    const auto* image = static_cast<const char*>(x) + row / pool.output_height * bytes_of_image;
    const Window vertical(row % pool.output_height, pool.stride_height, pool.padding_height,
                          pool.kernel_height, pool.dilation_height, pool.height);
    for (int64_t column = 0; column < pool.output_width; ++column) {
      const Window horizontal(column, pool.stride_width, pool.padding_width, pool.kernel_width,
                              pool.dilation_width, pool.width);
      const int64_t to = (row * pool.output_width + column) * pool.channels;
      for_each_group(pool.channels, [&]<int kLanes>(int64_t c) {
        max_of_window<kStorage, kLanes>(image, pool, vertical, horizontal, c, y, indices, to);
      });
    }
  }
}

void max_pool(const MaxPool& pool, const void* x, void* y, int64_t* indices, Range rows) {
  with_storage(pool.storage,
               [&]<Storage kStorage>() { max_pool_rows<kStorage>(pool, x, y, indices, rows); });
}

// The windows that reach a pixel, along one side, for pixels in ascending order. With dilation not
// all of them hold the pixel; then no index of theirs names it.
class Reach {
 public:
  Reach(int64_t stride, int64_t padding, int64_t kernel, int64_t dilation, int64_t output_size)
      : stride_(stride),
        padding_(padding),
        span_((kernel - 1) * dilation),
        output_size_(output_size) {}
  void move_to(int64_t pixel) {
    while (first * stride_ - padding_ + span_ < pixel) ++first;
    while (last < output_size_ && last * stride_ - padding_ <= pixel) ++last;
  }
  int64_t first = 0, last = 0;

 private:
  int64_t stride_, padding_, span_, output_size_;
};

template <Storage kStorage>
L rounded(L x) {
  return kStorage == Storage::kBf16 ? x.rounded_bf16() : x.rounded_f16();
}

// LibTorch rounds each sum to the storage, so we do. One of 0 and a number needs no rounding, and
// the last is rounded by the store.
template <Storage kStorage, int kLanes>
void grad_of_pixel(const MaxPool& pool, const void* grad, const int64_t* indices,
                   const Reach& vertical, const Reach& horizontal, int64_t pixel, int64_t c,
                   void* to, int64_t to_pixel, IndexMatches& matches) {
  L sum[kLanes];
  for (int i = 0; i < kLanes; ++i) sum[i] = L::all(0);
  int64_t count = 0;
  for (int64_t row = vertical.first; row < vertical.last; ++row) {
    for (int64_t column = horizontal.first; column < horizontal.last; ++column) {
      if (count > 1) {
        for (int i = 0; i < kLanes; ++i) sum[i] = rounded<kStorage>(sum[i]);
      }
      const int64_t at = (row * pool.output_width + column) * pool.channels + c;
      for (int i = 0; i < kLanes; ++i) {
        sum[i] = sum[i] + matches.take(indices + at + i * kWidth, pixel,
                                       load<kStorage>(grad, at + i * kWidth));
      }
      ++count;
    }
  }
  for (int i = 0; i < kLanes; ++i) {
    store<kStorage>(sum[i], to, to_pixel * pool.channels + c + i * kWidth);
  }
}

template <Storage kStorage>
int64_t max_pool_backward_rows(const MaxPool& pool, const void* grad, const int64_t* indices,
                               void* grad_input, Range rows) {
  const int64_t output_count = pool.output_height * pool.output_width * pool.channels;
  int64_t num_placed = 0;
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    const int64_t image = row / pool.height, y = row % pool.height;
    const auto* grad_of_image =
        static_cast<const char*>(grad) + image * output_count * bytes_per_element(kStorage);
    Reach vertical(pool.stride_height, pool.padding_height, pool.kernel_height,
                   pool.dilation_height, pool.output_height);
    vertical.move_to(y);
    Reach horizontal(pool.stride_width, pool.padding_width, pool.kernel_width, pool.dilation_width,
                     pool.output_width);
    IndexMatches matches;
    for (int64_t x = 0; x < pool.width; ++x) {
      horizontal.move_to(x);
      for_each_group(pool.channels, [&]<int kLanes>(int64_t c) {
        grad_of_pixel<kStorage, kLanes>(pool, grad_of_image, indices + image * output_count,
                                        vertical, horizontal, y * pool.width + x, c, grad_input,
                                        row * pool.width + x, matches);
      });
    }
    num_placed += matches.count();
  }
  return num_placed;
}

int64_t max_pool_backward(const MaxPool& pool, const void* grad, const int64_t* indices,
                          void* grad_input, Range rows) {
  return pool.storage == Storage::kBf16
             ? max_pool_backward_rows<Storage::kBf16>(pool, grad, indices, grad_input, rows)
             : max_pool_backward_rows<Storage::kF16>(pool, grad, indices, grad_input, rows);
}

}  // namespace image
}  // namespace
}  // namespace torchamp::kernels
