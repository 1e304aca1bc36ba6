#include "torchamp/checkpoint/few_threads.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace torchamp::checkpoint {

void in_few_threads(size_t count, size_t num_threads, const std::function<void(size_t)>& work) {
  constexpr size_t kMostThreads = 4;  // they saturate memory; bench/checkpoint_io.py
  std::atomic<size_t> next = 0;
  std::mutex mutex;
  std::exception_ptr error;
  const auto run = [&] {
    try {
      for (size_t i = next++; i < count; i = next++) work(i);
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!error) error = std::current_exception();
      next = count;
    }
  };
  num_threads =
      std::min<size_t>({num_threads, kMostThreads, std::thread::hardware_concurrency(), count});
  std::vector<std::thread> threads;
  while (threads.size() + 1 < num_threads) {
    try {
      threads.emplace_back(run);
    } catch (const std::system_error&) {
      break;  // no more threads: those there are do it
    }
  }
  run();
  for (std::thread& thread : threads) thread.join();
  if (error) std::rethrow_exception(error);
}

}  // namespace torchamp::checkpoint
