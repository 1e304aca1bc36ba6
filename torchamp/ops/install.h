#pragma once
// Kernels of TorchAmp on LibTorch's dispatcher: put there, taken away, listed. What they compute is
// in the other files of this room.

#include <string>
#include <vector>

#include "torchamp/base/export.h"

namespace torchamp::ops {

/// Puts TorchAmp's CPU kernels on LibTorch's dispatcher, for the whole process, so that unchanged
/// programs run them. Does nothing where that is done already, or where the environment variable
/// TORCHAMP_OPS is "off". With "all" it also replaces what a CPU with fp16 arithmetic need not.
///
/// Dtypes:  what the rows of list() say, computed in float32 and rounded once, at the store. Calls
///          with other dtypes, or that an op would refuse, go to LibTorch's own kernel unchanged.
/// Devices: CPU; others are untouched.
/// Threads: any; but an op that another thread runs meanwhile may take either kernel.
/// Errors:  base::UsageError where TORCHAMP_OPS has another value than on, off and all.
/// Returns: installed().
TORCHAMP_API bool install();

/// Takes back install(), however often that was called: LibTorch's kernels compute again, except
/// while an Installation lives.
TORCHAMP_API void uninstall();

/// Whether the kernels are on the dispatcher now.
TORCHAMP_API bool installed();

/// Keeps the kernels installed while it lives; for programs that need them for a time only.
class TORCHAMP_API Installation {
 public:
  /// Errors: as install().
  Installation();
  ~Installation();
  Installation(const Installation&) = delete;
  Installation& operator=(const Installation&) = delete;

 private:
  bool is_counted_;
};

/// What became of an op.
enum class OpState {
  kLibTorch,      ///< LibTorch's kernel runs: nothing is installed
  kReplaced,      ///< TorchAmp's kernel runs
  kOthers,        ///< another library's kernel was there, and was left alone
  kCovered,       ///< another library put its kernel over TorchAmp's, and runs
  kNotNeeded,     ///< this CPU has fp16 arithmetic: LibTorch's kernel is left alone
  kNotInLibTorch  ///< this LibTorch has no such op
};

/// A row of the list of ops.
struct ReplacedOp {
  std::string name;    ///< "aten::addmm.out"; "aten::cross_entropy_loss under autocast"
  std::string dtypes;  ///< of the tensors whose kernel is replaced: "float32, bfloat16"
  std::string reason;  ///< why, as a clause: "LibTorch has no fp16 kernel"
  OpState state = OpState::kLibTorch;
  std::string other;  ///< kOthers, kCovered: where the other kernel was registered
};

/// "LibTorch's", "replaced", "another library's", "covered by another library", "not needed here",
/// "not in this LibTorch".
TORCHAMP_API const char* to_string(OpState state);

/// All ops that install() replaces, or would, and what became of each.
TORCHAMP_API std::vector<ReplacedOp> list();

/// What is wrong with the environment variable TORCHAMP_OPS, as a sentence, or an empty string.
TORCHAMP_API std::string environment_error();

}  // namespace torchamp::ops
