#include "torchamp/kernels/cpu/table.h"

#include <atomic>
#include <cstdlib>
#include <cstring>

namespace torchamp::kernels {

extern const KernelTable scalar_table;
#if defined(__x86_64__)
extern const KernelTable avx2_table;
extern const KernelTable avx512_table;

bool cpu_has_avx2() {
  return __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0 &&
         __builtin_cpu_supports("f16c") != 0;
}

bool cpu_has_avx512() {
  return __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
         __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512vl") != 0;
}

namespace {
const KernelTable* const tables[] = {&scalar_table, &avx2_table, &avx512_table};
}
#else
namespace {
const KernelTable* const tables[] = {&scalar_table};
}
#endif

namespace {

std::atomic<const KernelTable*> in_use = nullptr;
std::atomic<const char*> refused_name = nullptr;

const KernelTable* choose() {
  const KernelTable* best = &scalar_table;
  for (const KernelTable* table : tables) {
    if (table->runs_here()) best = table;
  }
  if (const char* name = std::getenv("TORCHAMP_CPU"); name != nullptr && *name != '\0') {
    for (const KernelTable* table : tables) {
      if (std::strcmp(table->name, name) == 0 && table->runs_here()) return table;
    }
    refused_name = name;
  }
  return best;
}

}  // namespace

KernelTables cpu_tables() { return {tables, static_cast<int>(sizeof(tables) / sizeof(tables[0]))}; }

const KernelTable& cpu_table(const char** wrong_name) {
  const KernelTable* table = in_use.load(std::memory_order_acquire);
  if (table == nullptr) {
    table = choose();
    in_use.store(table, std::memory_order_release);
  }
  if (wrong_name != nullptr) *wrong_name = refused_name;
  return *table;
}

void use_cpu_table(const KernelTable& table) { in_use.store(&table, std::memory_order_release); }

}  // namespace torchamp::kernels
