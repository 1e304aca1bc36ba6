#pragma once
// float16 ops whose float32 copies stay small: element by element, and reductions. Internal.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <c10/util/OptionalArrayRef.h>

#include "torchamp/ops/half_op.h"

namespace torchamp::ops::detail {

/// Elements of float32 that one part of a tensor takes: 1 MiB, inside the second-level cache.
inline constexpr int64_t kPart = 1 << 18;

/// An op that computes each element of its result from the same elements of its tensors.
template <class Op, class Schema = typename Op::schema>
struct HalfPointwise;

template <class Op, class... Args>
struct HalfPointwise<Op, at::Tensor(const at::Tensor&, Args...)> {
  static inline Before before;

  static at::Tensor call(c10::DispatchKeySet keys, const at::Tensor& self, Args... args) {
    if (!HalfCall().takes(self, args...)) return run(keys, self, args...);
    const KernelsOnly kernels_only;
    const int64_t count = self.numel();
    if (count <= kPart || !self.is_non_overlapping_and_dense() || !(is_alike(self, args) && ...)) {
      return to_half(run(keys, widened(self), as<Args>(widened(args))...));
    }
    at::Tensor out = at::empty_like(self);
    for (int64_t begin = 0; begin < count; begin += kPart) {
      const int64_t length = std::min(kPart, count - begin);
      store_half(run(keys, part(self, begin, length), as<Args>(part(args, begin, length))...),
                 flat(out, begin, length));
    }
    return out;
  }

 private:
  static at::Tensor run(c10::DispatchKeySet keys, const at::Tensor& self, Args... args) {
    return before.call<at::Tensor, const at::Tensor&, Args...>(keys, self,
                                                               std::forward<Args>(args)...);
  }
  template <class Arg, class T>
  static const T& as(const T& value) {
    return value;
  }
  static bool is_alike(const at::Tensor& self, const at::Tensor& other) {
    return other.sizes() == self.sizes() && other.strides() == self.strides();
  }
  template <class T>
  static bool is_alike(const at::Tensor& /*self*/, const T& /*no_tensor*/) {
    static_assert(!std::is_same_v<T, std::optional<at::Tensor>>, "of the same elements only");
    return true;
  }
  static at::Tensor flat(const at::Tensor& tensor, int64_t begin, int64_t length) {
    return tensor.as_strided({length}, {1}, tensor.storage_offset() + begin);
  }
  static at::Tensor part(const at::Tensor& tensor, int64_t begin, int64_t length) {
    return to_float(flat(tensor, begin, length));
  }
  template <class T>
  static T part(const T& value, int64_t /*begin*/, int64_t /*length*/) {
    return value;
  }
};

/// How the results of parts become the result of all, where every dimension is reduced.
enum class Combine {
  kNever,   ///< they do not: the whole tensor is converted
  kSameOp,  ///< by the op itself: the norm of norms, the largest of the largest
  kMean,    ///< by the mean, weighted with the parts' sizes
};

/// An op that reduces one tensor to one: along some dimensions, or all.
template <class Op, Combine combine = Combine::kNever, class Schema = typename Op::schema>
struct HalfReduction;

template <class Op, Combine combine, class... Args>
struct HalfReduction<Op, combine, at::Tensor(const at::Tensor&, Args...)> {
  static inline Before before;

  static at::Tensor call(c10::DispatchKeySet keys, const at::Tensor& self, Args... args) {
    if (!HalfCall().takes(self, args...) || (asks_for_dtype(args) || ...)) {
      return run(keys, self, args...);
    }
    const KernelsOnly kernels_only;
    std::vector<bool> is_reduced(static_cast<size_t>(self.dim()), false);
    bool keeps_dims = false, can_combine = combine != Combine::kNever;
    (look(args, is_reduced, keeps_dims, can_combine), ...);
    const bool is_small = self.numel() <= 4 * kPart;
    const int64_t dim = is_small ? -1 : longest(self, is_reduced, /*of_reduced=*/false);
    if (dim >= 0) {
      const int64_t kept = std::count(is_reduced.begin(), is_reduced.begin() + dim, false);
      std::vector<at::Tensor> results;
      for_parts(self, dim, [&](const at::Tensor& part) {
        results.push_back(to_half(run(keys, part, args...)));
      });
      return at::cat(results, keeps_dims ? dim : kept);
    }
    const int64_t cut = is_small || !can_combine ? -1 : longest(self, is_reduced, true);
    return to_half(cut >= 0 ? combined(keys, self, cut, args...)
                            : run(keys, to_float(self), args...));
  }

 private:
  static at::Tensor run(c10::DispatchKeySet keys, const at::Tensor& self, Args... args) {
    return before.call<at::Tensor, const at::Tensor&, Args...>(keys, self,
                                                               std::forward<Args>(args)...);
  }

  // Every dimension is reduced.
  static at::Tensor combined(c10::DispatchKeySet keys, const at::Tensor& self, int64_t dim,
                             Args... args) {
    const std::vector<int64_t> one(static_cast<size_t>(self.dim()), 1);
    std::vector<at::Tensor> results;
    std::vector<int64_t> lengths;
    for_parts(self, dim, [&](const at::Tensor& part) {
      results.push_back(run(keys, part, args...).reshape(one));
      lengths.push_back(part.size(dim));
    });
    if constexpr (combine == Combine::kMean) {
      const double share =
          static_cast<double>(lengths.size()) / static_cast<double>(self.size(dim));
      for (size_t i = 0; i < results.size(); ++i) {
        results[i].mul_(share * static_cast<double>(lengths[i]));
      }
    }
    return run(keys, at::cat(results, dim), args...);
  }

  template <class F>
  static void for_parts(const at::Tensor& self, int64_t dim, F&& visit) {
    const int64_t size = self.size(dim);
    const int64_t step = std::max<int64_t>(1, 4 * kPart / (self.numel() / size));
    for (int64_t begin = 0; begin < size; begin += step) {
      visit(to_float(self.narrow(dim, begin, std::min(step, size - begin))));
    }
  }

  static int64_t longest(const at::Tensor& self, const std::vector<bool>& is_reduced,
                         bool of_reduced) {
    int64_t found = -1;
    for (int64_t dim = 0; dim < self.dim(); ++dim) {
      if (is_reduced[static_cast<size_t>(dim)] != of_reduced) continue;
      if (found < 0 || self.size(dim) > self.size(found)) found = dim;
    }
    return found;
  }

  static void mark(int64_t dim, std::vector<bool>& is_reduced) {
    const auto rank = static_cast<int64_t>(is_reduced.size());
    if (dim < 0) dim += rank;
    if (dim >= 0 && dim < rank)
      is_reduced[static_cast<size_t>(dim)] = true;  // else LibTorch's to refuse
  }
  static void look(at::IntArrayRef dims, std::vector<bool>& is_reduced, bool& /*keeps*/, bool&) {
    if (dims.empty()) is_reduced.assign(is_reduced.size(), true);
    for (const int64_t dim : dims) mark(dim, is_reduced);
  }
  static void look(const at::OptionalIntArrayRef& dims, std::vector<bool>& is_reduced, bool& keeps,
                   bool& can) {
    look(dims.value_or(at::IntArrayRef()), is_reduced, keeps, can);
  }
  static void look(int64_t dim, std::vector<bool>& is_reduced, bool& /*keeps*/, bool&) {
    mark(dim, is_reduced);
  }
  static void look(std::optional<int64_t> dim, std::vector<bool>& is_reduced, bool&, bool&) {
    if (dim.has_value()) {
      mark(*dim, is_reduced);
    } else {
      is_reduced.assign(is_reduced.size(), true);
    }
  }
  static void look(bool keeps_dims, std::vector<bool>&, bool& keeps, bool&) { keeps = keeps_dims; }
  // The order of a norm: that of 0 counts, and a count of counts is another thing.
  static void look(const at::Scalar& order, std::vector<bool>&, bool&, bool& can) {
    can = can && order.toDouble() != 0;
  }
  template <class T>
  static void look(const T& /*other*/, std::vector<bool>&, bool&, bool&) {}

  static bool asks_for_dtype(std::optional<at::ScalarType> dtype) { return dtype.has_value(); }
  template <class T>
  static bool asks_for_dtype(const T& /*other*/) {
    return false;
  }
};

}  // namespace torchamp::ops::detail
