// Which table is used: the best one, or the one that TORCHAMP_CPU names.

#include <cstdio>
#include <cstdlib>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/arrays.h"

namespace torchamp::kernels {
namespace {

// Prints "<table in use> <refused name>" in a process of its own: the choice is made once.
[[noreturn]] void print_choice(const char* variable) {
  if (variable == nullptr) {
    unsetenv("TORCHAMP_CPU");
  } else {
    setenv("TORCHAMP_CPU", variable, 1);
  }
  const char* wrong = "unset";
  const char* name = cpu_table(&wrong).name;
  setenv("TORCHAMP_CPU", "changed later", 1);
  const char* still = cpu_table().name;
  std::fprintf(stderr, "%s %s %s;", name, wrong == nullptr ? "-" : wrong, still);
  std::exit(0);
}

class TableChoiceDeathTest : public testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }

  static void expect_choice(const char* variable, const std::string& table,
                            const std::string& wrong) {
    EXPECT_EXIT(print_choice(variable), testing::ExitedWithCode(0),
                "^" + table + " " + wrong + " " + table + ";");
  }
  static std::string best() { return tables_here().back()->name; }
};

TEST_F(TableChoiceDeathTest, TheLastThatRunsHereIsUsed) {
  expect_choice(nullptr, best(), "-");
  expect_choice("", best(), "-");
}

TEST_F(TableChoiceDeathTest, TheVariableForcesATable) {
  for (const KernelTable* table : tables_here()) expect_choice(table->name, table->name, "-");
}

TEST_F(TableChoiceDeathTest, AWrongNameIsToldAndTheBestIsUsed) {
  expect_choice("sse9", best(), "sse9");
  expect_choice("AVX2", best(), "AVX2");  // names are told exactly
  expect_choice("scalar ", best(), "scalar ");
}

TEST(Tables, AreListedWithThePlainestFirst) {
  std::set<std::string> names;
  for (const KernelTable* table : cpu_tables()) names.insert(table->name);
  EXPECT_EQ(names.size(), static_cast<size_t>(cpu_tables().count));
  EXPECT_STREQ(cpu_tables().first[0]->name, "scalar");
  EXPECT_TRUE(cpu_tables().first[0]->runs_here());
#if defined(__x86_64__)
  EXPECT_EQ(names, (std::set<std::string>{"scalar", "avx2", "avx512"}));
#endif
}

TEST(Tables, OneCanBePutInUse) {
  const KernelTable& before = cpu_table();
  for (const KernelTable* table : tables_here()) {
    use_cpu_table(*table);
    EXPECT_EQ(&cpu_table(), table);
  }
  use_cpu_table(before);
}

TEST(Tables, ThreadsThatAskFirstAtTheSameTimeAgree) {
  std::vector<const KernelTable*> seen(8);
  std::vector<std::thread> threads;
  for (auto& slot : seen) threads.emplace_back([&slot] { slot = &cpu_table(); });
  for (std::thread& thread : threads) thread.join();
  for (const KernelTable* table : seen) EXPECT_EQ(table, seen.front());
}

TEST(Tables, EveryKernelIsThere) {
  for (const KernelTable* table : cpu_tables()) {
    EXPECT_TRUE(table->measure && table->multiply && table->adam && table->sgd &&
                table->lamb_moments && table->lamb_apply && table->read && table->write)
        << table->name;
  }
}

}  // namespace
}  // namespace torchamp::kernels
