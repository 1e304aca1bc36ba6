#pragma once
// A loop in a few threads, for work that memory or the disk bounds. std::thread, as this room knows
// no OpenMP.

#include <cstddef>
#include <functional>

namespace torchamp::checkpoint {

/// Calls `work(i)` for every i below `count`, in this thread and others: at most `num_threads` in
/// all, at most four, and fewer where no more can be had. The first error is rethrown when all have
/// ended; what had not begun by then is left out.
void in_few_threads(size_t count, size_t num_threads, const std::function<void(size_t)>& work);

}  // namespace torchamp::checkpoint
