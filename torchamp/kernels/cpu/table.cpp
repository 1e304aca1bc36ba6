#include "torchamp/kernels/cpu/table.h"

#include <atomic>
#include <cstdlib>
#include <string>
#include <string_view>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace torchamp::kernels {

extern const KernelTable scalar_table;
#if defined(__x86_64__)
extern const KernelTable avx2_table;
extern const KernelTable avx512_table;

namespace {
bool cpu_has_f16c() {  // clang 14 has no name for it
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
}  // namespace

bool cpu_has_avx2() {
  return __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0 &&
         cpu_has_f16c();
}

bool cpu_has_avx512() {  // its file is compiled for FMA and F16C too
  return cpu_has_avx2() && __builtin_cpu_supports("avx512f") != 0 &&
         __builtin_cpu_supports("avx512bw") != 0 && __builtin_cpu_supports("avx512dq") != 0 &&
         __builtin_cpu_supports("avx512vl") != 0;
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

struct Choice {
  const KernelTable* table;
  std::string wrong_name;
};

Choice choose() {
  const KernelTable* best = &scalar_table;
  for (const KernelTable* table : tables) {
    if (table->runs_here()) best = table;
  }
  const char* name = std::getenv("TORCHAMP_CPU");
  if (name == nullptr || *name == '\0') return {best, {}};
  for (const KernelTable* table : tables) {
    if (table->name == std::string_view(name) && table->runs_here()) return {table, {}};
  }
  return {best, name};
}

const Choice& choice() {
  static const Choice first = choose();
  return first;
}

std::atomic<const KernelTable*> forced = nullptr;

}  // namespace

KernelTables cpu_tables() { return {tables, static_cast<int>(sizeof(tables) / sizeof(tables[0]))}; }

const KernelTable& cpu_table(const char** wrong_name) {
  const Choice& chosen = choice();
  if (wrong_name != nullptr) {
    *wrong_name = chosen.wrong_name.empty() ? nullptr : chosen.wrong_name.c_str();
  }
  const KernelTable* table = forced.load(std::memory_order_acquire);
  return table != nullptr ? *table : *chosen.table;
}

void use_cpu_table(const KernelTable& table) { forced.store(&table, std::memory_order_release); }

}  // namespace torchamp::kernels
