#include "torchamp/multi_tensor/cpu_kernels.h"

#include "torchamp/base/state_dict.h"
#include "torchamp/kernels/cpu/table.h"

namespace torchamp::multi_tensor {

std::vector<CpuKernels> list_cpu_kernels() {
  std::vector<CpuKernels> list;
  const kernels::KernelTable* used = &kernels::cpu_table();
  for (const kernels::KernelTable* table : kernels::cpu_tables()) {
    list.push_back({table->name, table->runs_here(), table == used});
  }
  return list;
}

std::optional<std::string> cpu_kernels_error() {
  const char* wrong_name = nullptr;
  kernels::cpu_table(&wrong_name);
  if (wrong_name == nullptr) return std::nullopt;
  std::string accepted;
  bool is_of_this_build = false;
  for (const CpuKernels& each : list_cpu_kernels()) {
    if (each.runs_here) accepted += (accepted.empty() ? "" : ", ") + each.name;
    is_of_this_build |= each.name == wrong_name;
  }
  return "[TORCHAMP_CPU] The environment variable TORCHAMP_CPU is '" + base::printable(wrong_name) +
         "', " +
         (is_of_this_build ? "kernels with instructions that this CPU lacks"
                           : "a name that no kernels have") +
         "; " + accepted + " or no value is accepted. Was it set for another machine?";
}

}  // namespace torchamp::multi_tensor
