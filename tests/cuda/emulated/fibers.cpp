// The threads of cuda_runtime.h: fibers that take turns.

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <vector>

#include <ucontext.h>

#include "cuda_runtime.h"

namespace emulated {

dim3 thread_index, block_index;
bool capturing = false;
bool backwards = false;
int64_t num_launches = 0;
int64_t failing_launch = -1;
cudaError_t last_error = cudaSuccess;

namespace {

constexpr size_t kStack = 128 * 1024;
constexpr unsigned kWarp = 32;

// Who waits at a barrier, and how many times it has opened.
struct Barrier {
  unsigned arrived = 0;
  unsigned opened = 0;
};

struct Fiber {
  ucontext_t context;
  std::unique_ptr<char[]> stack{new char[kStack]};
  bool has_ended = false;
};

struct Block {
  std::vector<Fiber> fibers;
  ucontext_t scheduler;
  unsigned num_threads = 0;
  unsigned current = 0;
  Barrier of_block;
  std::vector<Barrier> of_warps;
  std::vector<uint64_t> values;
  bool moved = false;  // some thread went on since the scheduler last looked
  const std::function<void()>* kernel = nullptr;
};

Block block;

void yield() { swapcontext(&block.fibers[block.current].context, &block.scheduler); }

void wait(Barrier& barrier, unsigned size) {
  const unsigned opened = barrier.opened;
  block.moved = true;
  if (++barrier.arrived == size) {
    barrier.arrived = 0;
    ++barrier.opened;
  }
  while (barrier.opened == opened) yield();
  block.moved = true;
}

unsigned warp_size() {
  const unsigned first = block.current / kWarp * kWarp;
  return std::min(kWarp, block.num_threads - first);
}

void enter() {
  (*block.kernel)();
  block.fibers[block.current].has_ended = true;
  block.moved = true;
  yield();
}

void run_block() {
  block.of_block = {};
  block.of_warps.assign((block.num_threads + kWarp - 1) / kWarp, {});
  block.values.assign(block.num_threads, 0);
  if (block.fibers.size() < block.num_threads) block.fibers.resize(block.num_threads);
  for (unsigned i = 0; i < block.num_threads; ++i) {
    Fiber& fiber = block.fibers[i];
    fiber.has_ended = false;
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.get();
    fiber.context.uc_stack.ss_size = kStack;
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, enter, 0);
  }
  for (unsigned left = block.num_threads; left > 0;) {
    block.moved = false;
    for (unsigned i = 0; i < block.num_threads; ++i) {
      if (block.fibers[i].has_ended) continue;
      block.current = i;
      thread_index.x = i;
      swapcontext(&block.scheduler, &block.fibers[i].context);
      if (block.fibers[i].has_ended) --left;
    }
    if (!block.moved) throw std::logic_error("threads wait at a barrier that others never reach");
  }
}

}  // namespace

void barrier_of_block() { wait(block.of_block, block.num_threads); }

void barrier_of_warp() { wait(block.of_warps[block.current / kWarp], warp_size()); }

uint64_t exchange(uint64_t value, unsigned from) {
  block.values[block.current] = value;
  barrier_of_warp();
  const uint64_t taken = block.values[block.current / kWarp * kWarp + from];
  barrier_of_warp();
  return taken;
}

void run(unsigned num_blocks, unsigned num_threads, const std::function<void()>& kernel) {
  block.num_threads = num_threads;
  block.kernel = &kernel;
  for (unsigned i = 0; i < num_blocks; ++i) {
    block_index.x = backwards ? num_blocks - 1 - i : i;
    run_block();
  }
}

}  // namespace emulated
