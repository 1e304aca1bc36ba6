#pragma once
// CheckpointManager: the checkpoints of a run, written in the background, the last few and the best
// one kept; find_last_good(): the one to go on from. What a checkpoint holds is not its business.

#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <sys/types.h>

#include "torchamp/base/export.h"
#include "torchamp/base/loading.h"
#include "torchamp/base/state_dict.h"

namespace torchamp::checkpoint {

struct CheckpointManagerOptions {
  int64_t keep_last = 1;   ///< newest checkpoints that stay; 1 or more
  bool keep_best = false;  ///< whether the one with the lowest metric stays
  bool background = true;  ///< whether save() returns before the file is written
};

/// Saves the checkpoints of one run.
///
/// `path`, say run/last.pt, is the newest. With keep_last > 1 the newest ones are also
/// run/last.step-00000120.pt and so on, with keep_best the best one run/last.best.pt. They are hard
/// links where the file system has them: each checkpoint is written once. Every name is at every
/// moment absent or a whole checkpoint. Older ones are removed when the new one is on the disk, as
/// are those of a later step: the run has left their course. Files of other names are never
/// touched. Of another run none is removed, but one of the same step, the best one and `path`
/// itself are replaced; nor is a file that does not tell its run.
///
/// A manager begins a run of its own, with a random identity that every checkpoint holds, unless
/// load_state_dict() brings that of the run that it goes on with.
///
/// Since the newest names may be one file, replace one of them with mv, not with cp.
///
/// Thread safety: all of it, one call after the other. After a fork() the child has no write under
/// way.
/// Memory: in the background one copy of what others could write to, until it is on the disk.
/// Tensors that nobody else holds are not copied: hand them over with std::move(state).
class TORCHAMP_API CheckpointManager {
 public:
  /// Errors: c10::ValueError for keep_last below 1.
  explicit CheckpointManager(std::filesystem::path path, CheckpointManagerOptions options = {});
  /// Waits for the write under way. An error that no call has thrown becomes a warning of
  /// LibTorch's; wait() throws it.
  ~CheckpointManager();
  CheckpointManager(const CheckpointManager&) = delete;
  CheckpointManager& operator=(const CheckpointManager&) = delete;

  /// Writes `state`, the run's at `step`. In the background it waits for an earlier write, takes
  /// its copy and returns: what is done to the tensors afterwards does not reach the file.
  ///
  /// `metric`: lower is better; NaN and none are never the best, the first of two equal ones stays
  /// it. state["checkpoint_manager"] is set to state_dict().
  ///
  /// Errors: CheckpointError as checkpoint::save(). That of an earlier write in the background is
  ///         thrown here once, and `state` is not written.
  void save(base::StateDict state, int64_t step, std::optional<double> metric = std::nullopt);
  /// Returns when all is on the disk. Errors: that of the write in the background, once.
  void wait();

  struct Best {
    double metric;
    int64_t step;
  };
  /// Of the checkpoint in best_path(path); that of a write under way counts.
  std::optional<Best> best() const;

  /// What a run that goes on must know, so that its older steps are its own and no worse checkpoint
  /// takes the place of the best: "run_id", 32 hexadecimal digits, and where there is a best one
  /// "best_metric" and "best_step".
  base::StateDict state_dict() const;
  /// Goes on as the run of `state`; without a "run_id", as files of earlier versions, as a run of
  /// its own.
  ///
  /// Errors: CheckpointError naming the entries that are missing, of another type or out of range.
  void load_state_dict(const base::StateDict& state);
  /// The first half of it: compares, and changes nothing.
  base::Loading prepare_load(const base::StateDict& state);

 private:
  base::StateDict to_state_dict(const std::optional<Best>& best) const;
  void start(const std::function<void()>& work);
  void finish_earlier();

  const std::filesystem::path path_;
  const CheckpointManagerOptions options_;
  mutable std::mutex mutex_;
  std::string run_id_;
  std::optional<Best> best_;          // with that of a write under way
  std::optional<Best> best_on_disk_;  // should that fail
  std::exception_ptr error_;          // of the writer; read after its end
  std::unique_ptr<std::thread> writer_;
  pid_t writer_process_ = 0;
};

/// The names beside `path` under which a CheckpointManager keeps a step and the best one.
TORCHAMP_API std::filesystem::path step_path(const std::filesystem::path& path, int64_t step);
TORCHAMP_API std::filesystem::path best_path(const std::filesystem::path& path);

/// The checkpoints there are under `path`'s names: itself, the steps from the newest on, the best
/// one. Some may be of an earlier run.
TORCHAMP_API std::vector<std::filesystem::path> checkpoint_files(const std::filesystem::path& path);

/// Whether a CheckpointManager of `path`'s run may ever write to `file`: any step, the best one and
/// what is half written included. Compares names: give both as std::filesystem::weakly_canonical().
TORCHAMP_API bool is_checkpoint_name(const std::filesystem::path& file,
                                     const std::filesystem::path& path);

/// The newest checkpoint that is whole, and why newer ones are not.
struct LastGood {
  struct PassedOver {
    std::filesystem::path file;
    std::string reason;
  };
  std::filesystem::path file;
  std::string reason;                   ///< why it stands in for `path`; empty when it is `path`
  std::vector<PassedOver> passed_over;  ///< `path` is among them when it is not there
};

/// Reads `path`, and where it is not whole the others of checkpoint_files() in their order until
/// one is, checksums included. What a killed process left half written has another name and is
/// never taken.
///
/// Only files of `path`'s own run are taken, which a file says as long as its pickle can be read;
/// where `path` does not, only those of the run that wrote one last, by the time of the file.
///
/// Errors: CheckpointError with the reason of each file, when none is good.
TORCHAMP_API LastGood find_last_good(const std::filesystem::path& path);

/// What load() gives of the newest whole checkpoint.
struct LoadedLastGood {
  LastGood good;
  base::StateDict state;
};

/// find_last_good() and load() in one: a good file is read once.
///
/// Errors: as find_last_good(); as load() where a whole file cannot be loaded (no dict, not enough
///         memory), which no older one stands in for.
TORCHAMP_API LoadedLastGood load_last_good(const std::filesystem::path& path);

}  // namespace torchamp::checkpoint
