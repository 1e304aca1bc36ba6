// Whatever ends the process or fails while a run's checkpoints are written, a whole one is found.

#include <cerrno>
#include <csignal>
#include <filesystem>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <torch/torch.h>

#include "checkpoint/manager_support.h"
#include "checkpoint/system_calls.h"
#include "support/temporary_folder.h"
#include "torchamp/base/error.h"
#include "torchamp/checkpoint/checkpoint.h"
#include "torchamp/checkpoint/checkpoint_manager.h"

namespace torchamp::checkpoint {
namespace {

namespace fs = std::filesystem;
using base::CheckpointError;
using system_calls::Action;
using system_calls::Answer;
using system_calls::Intercept;

constexpr CheckpointManagerOptions kAll{.keep_last = 3, .keep_best = true, .background = true};
// Of steps 1 to 6: the best one changes at 1, 2, 4 and 6.
constexpr double kMetrics[] = {9, 5, 3, 4, 2, 6, 1};
constexpr int64_t kNumSteps = 6;

double metric_of(int64_t step) { return kMetrics[step % 7]; }

// What a child process tells its parent, whatever becomes of it.
struct Shared {
  int64_t started = 0;   // the last step that save() was called for
  int64_t finished = 0;  // the last one of which it is known that it is on the disk
  int64_t num_calls = 0;
};

class SharedMemory {
 public:
  SharedMemory()
      : shared_(static_cast<Shared*>(::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE,
                                            MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {}
  ~SharedMemory() { ::munmap(shared_, sizeof(Shared)); }
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;
  Shared* operator->() { return shared_; }
  Shared& operator*() { return *shared_; }

 private:
  Shared* shared_;
};

int in_child(const std::function<int()>& work) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(60);  // a child that hangs is a failure, not a wait
    ::_exit(work());
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return status;
}

void save_steps(const fs::path& path, int64_t first, int64_t last, Shared& shared) {
  CheckpointManager manager(path, kAll);
  if (first > 1) {
    manager.load_state_dict(load(find_last_good(path).file).at("checkpoint_manager").to_dict());
  }
  for (int64_t step = first; step <= last; ++step) {
    shared.started = step;
    manager.save(numbered_state(step), step, metric_of(step));
    shared.finished = step - 1;
  }
  manager.wait();
  shared.finished = last;
}

// Checks all that is visible, and returns the step to go on from; 0 where nothing was finished.
// `must_exist`: whether `path` itself was written for sure; before, a step may be there alone.
int64_t check_remains(const fs::path& path, const Shared& shared, bool must_exist) {
  for (const fs::path& file : checkpoint_files(path)) number_in(file);  // each is whole
  int64_t step = 0;
  try {
    const LastGood good = find_last_good(path);
    EXPECT_TRUE(good.passed_over.empty() || !must_exist);
    step = number_in(good.file);
  } catch (const CheckpointError& error) {
    EXPECT_EQ(shared.finished, 0) << error.what();
    return 0;
  }
  EXPECT_GE(step, shared.finished);
  EXPECT_LE(step, shared.started);
  return step;
}

TEST(ManagerCrash, AProcessKilledAtAnyCallLeavesAWholeNewestCheckpoint) {
  SharedMemory shared;
  const auto count = [&](const std::string&, const std::string&) {
    ++shared->num_calls;
    return Answer{};
  };
  const TemporaryFolder counted;
  ASSERT_EQ(in_child([&] {
              const Intercept intercept(count);
              save_steps(counted / "last.pt", 1, kNumSteps, *shared);
              return 0;
            }),
            0);
  const int64_t num_calls = shared->num_calls;

  int num_points = 0;
  for (const Action action : {Action::kKillBefore, Action::kKillHalfway, Action::kKillAfter}) {
    for (int64_t point = 1; point <= num_calls; ++point, ++num_points) {
      SCOPED_TRACE(std::to_string(point) + " of " + std::to_string(num_calls));
      const TemporaryFolder folder;
      const fs::path path = folder / "last.pt";
      *shared = {};
      const int status = in_child([&] {
        const Intercept intercept([&](const std::string&, const std::string&) {
          return Answer{++shared->num_calls == point ? action : Action::kPass, 0};
        });
        save_steps(path, 1, kNumSteps, *shared);
        return 0;
      });
      ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
      const int64_t step = check_remains(path, *shared, shared->finished > 0);
      // `path`, three steps, one about to be removed, and the best one.
      EXPECT_LE(checkpoint_files(path).size(), 6U);
      // So does a next process that begins to write: what the killed one left half written may be
      // the same file as what it finished.
      const std::vector<fs::path> files = checkpoint_files(path);
      check_can_save(path);
      EXPECT_EQ(checkpoint_files(path), files);
      EXPECT_EQ(check_remains(path, *shared, shared->finished > 0), step);
      ASSERT_FALSE(HasFailure());

      // The next process goes on, and cleans up.
      *shared = {};
      if (point % 7 != 0) continue;
      ASSERT_EQ(
          in_child([&] {
            const Intercept fast([](const std::string&, const std::string&) { return Answer{}; });
            save_steps(path, step + 1, kNumSteps + 1, *shared);
            return 0;
          }),
          0);
      EXPECT_EQ(names_in(folder.path()),
                (std::set<std::string>{"last.pt", "last.best.pt", "last.step-00000007.pt",
                                       "last.step-00000006.pt", "last.step-00000005.pt"}));
      EXPECT_EQ(number_in(best_path(path)), 6);
      ASSERT_FALSE(HasFailure());
    }
  }
  EXPECT_GE(num_points, 300);
}

TEST(ManagerCrash, AProcessKilledAtAnyMomentLeavesAWholeNewestCheckpoint) {
  const TemporaryFolder folder;
  const fs::path path = folder / "last.pt";
  SharedMemory shared;
  int64_t step = 0;
  // On a busy machine nothing may be finished in time: then longer ones follow.
  for (int round = 0; round < 60 || (step == 0 && round < 80); ++round) {
    const bool was_there = fs::exists(path);
    const int64_t before = step;
    *shared = {step, step, 0};
    const pid_t child = ::fork();
    if (child == 0) {
      save_steps(path, step + 1, std::numeric_limits<int64_t>::max(), *shared);
      ::_exit(0);
    }
    const int scale = round < 60 ? 1 : 30;
    ::usleep(static_cast<useconds_t>(300 + scale * ((round * 7919) % 30000)));  // some saves
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    step = check_remains(path, *shared, was_there || shared->finished > before);
    ASSERT_FALSE(HasFailure()) << round;
  }
  EXPECT_GT(step, 0);
}

TEST(ManagerCrash, AnyFailingCallIsToldOnceAndThePreviousCheckpointIsFound) {
  for (const int error : {ENOSPC, EIO}) {
    for (int64_t point = 1; point < 60; ++point) {
      const TemporaryFolder folder;
      const fs::path path = folder / "last.pt";
      CheckpointManager manager(path, kAll);
      for (int64_t step = 1; step <= 4; ++step) manager.save(numbered_state(step), step, 5 - step);
      manager.wait();
      int64_t num_calls = 0;
      std::string failed;
      std::string text;
      {
        const Intercept intercept([&](const std::string& call, const std::string&) {
          const bool fails = ++num_calls == point;
          if (fails) failed = call;
          return Answer{Action::kPass, fails ? error : 0};
        });
        manager.save(numbered_state(5), 5, 0.0);
        try {
          manager.wait();
        } catch (const CheckpointError& thrown) {
          text = thrown.what();
        }
      }
      if (num_calls < point) break;
      // A file system may know no fallocate, and what is left over is taken away the next time.
      const bool may_pass =
          (failed == "fallocate" && error == EIO) || (failed == "unlink" && text.empty());
      EXPECT_TRUE(may_pass || text.find("[checkpoint::save] '" + path.string() + "'") == 0 ||
                  text.find("could not be removed") != std::string::npos)
          << point << " " << failed << " " << text;
      EXPECT_GE(number_in(find_last_good(path).file), 4);
      for (const fs::path& file : checkpoint_files(path)) number_in(file);
      manager.wait();  // told once
      manager.save(numbered_state(6), 6, -1.0);
      manager.wait();
      // Step 5 is there where it failed after it had its name.
      const std::string third =
          fs::exists(step_path(path, 5)) ? "last.step-00000005.pt" : "last.step-00000003.pt";
      EXPECT_EQ(names_in(folder.path()),
                (std::set<std::string>{"last.pt", "last.best.pt", "last.step-00000006.pt",
                                       "last.step-00000004.pt", third}));
      EXPECT_EQ(number_in(path), 6);
      EXPECT_EQ(number_in(best_path(path)), 6);
      ASSERT_FALSE(HasFailure()) << point << " " << failed;
    }
  }
}

TEST(ManagerCrash, AFullDiskIsFoundBeforeTheFirstByteAndKeepsWhatStandsThere) {
  const TemporaryFolder folder;
  const fs::path path = folder / "last.pt";
  constexpr int kNoMount = 77;
  const int status = in_child([&] {
    const bool is_root = ::geteuid() == 0;
    if (::unshare(is_root ? CLONE_NEWNS : CLONE_NEWNS | CLONE_NEWUSER) != 0) return kNoMount;
    ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr);
    if (::mount("tmpfs", folder.path().c_str(), "tmpfs", 0, "size=160k") != 0) return kNoMount;
    CheckpointManager manager(path, kAll);  // 44 KB each: four do not fit beside each other
    int64_t num_failed = 0;
    for (int64_t step = 1; step <= 8; ++step) {
      try {
        manager.save(numbered_state(step, 5000), step, 1.0 / static_cast<double>(step));
        manager.wait();
      } catch (const CheckpointError& error) {
        const std::string text = error.what();
        if (text.find("bytes aside failed with \"No space left on device\"") == std::string::npos) {
          return 1;
        }
        if (text.find("Is the disk full?") == std::string::npos) return 2;
        ++num_failed;
        if (names_in(folder.path()).count("last.pt.partial") != 0) return 3;
      }
      for (const fs::path& file : checkpoint_files(path)) number_in(file);
      if (number_in(find_last_good(path).file) != std::min<int64_t>(step, 3)) return 4;
    }
    return num_failed == 5 ? 0 : 5;
  });
  if (WEXITSTATUS(status) == kNoMount) {
    GTEST_SKIP() << "this user may not mount a small file system; failing calls stand in";
  }
  EXPECT_EQ(status, 0);
}

TEST(ManagerCrash, ALimitOnTheSizeOfFilesIsAnErrorThoughItsSignalWouldKill) {
  const TemporaryFolder folder;
  const fs::path path = folder / "last.pt";
  const int status = in_child([&] {
    CheckpointManager manager(path, kAll);
    manager.save(numbered_state(1), 1, 1.0);
    manager.wait();
    rlimit limit{};
    ::getrlimit(RLIMIT_FSIZE, &limit);
    limit.rlim_cur = 3000;
    ::setrlimit(RLIMIT_FSIZE, &limit);
    ::signal(SIGXFSZ, SIG_DFL);
    manager.save(numbered_state(2, 5000), 2, 0.5);
    try {
      manager.save(numbered_state(3), 3, 0.1);
      return 1;
    } catch (const CheckpointError& error) {
      if (std::string(error.what()).find("\"File too large\"") == std::string::npos) return 2;
    }
    if (manager.best()->step != 1) return 3;  // 2 was not written
    return number_in(find_last_good(path).file) == 1 ? 0 : 4;
  });
  EXPECT_EQ(status, 0);
}

TEST(ManagerCrash, AFolderThatIsReadOnlyOrGoneIsAnError) {
  const TemporaryFolder folder;
  fs::create_directory(folder / "run");
  const fs::path path = folder / "run/last.pt";
  const auto error_of = [](CheckpointManager& manager) -> std::string {
    try {
      manager.save(numbered_state(2), 2, 0.5);
      manager.wait();
      return "";
    } catch (const CheckpointError& error) {
      return error.what();
    }
  };
  const int status = in_child([&] {
    ::chmod((folder / "run").c_str(), 0777);
    ::chmod(folder.path().c_str(), 0777);
    if (::geteuid() == 0 && ::setuid(65534) != 0) return 1;
    CheckpointManager manager(path, kAll);
    manager.save(numbered_state(1), 1, 1.0);
    manager.wait();
    if (::geteuid() != 65534) ::chmod((folder / "run").c_str(), 0555);
    return number_in(path) == 1 ? 0 : 2;
  });
  ASSERT_EQ(status, 0);
  ::chmod((folder / "run").c_str(), 0555);
  const int read_only = in_child([&] {
    if (::geteuid() == 0 && ::setuid(65534) != 0) return 1;
    CheckpointManager manager(path, kAll);
    if (error_of(manager).find("Permission denied") == std::string::npos) return 2;
    return number_in(find_last_good(path).file) == 1 ? 0 : 3;
  });
  EXPECT_EQ(read_only, 0);
  ::chmod((folder / "run").c_str(), 0755);

  CheckpointManager manager(path, kAll);
  // It goes away between the first byte and the renaming.
  const Intercept intercept([&](const std::string& call, const std::string&) {
    if (call == "fsync") fs::remove_all(folder / "run");
    return Answer{};
  });
  const std::string error = error_of(manager);
  EXPECT_NE(error.find("No such file or directory"), std::string::npos) << error;
  EXPECT_NE(error.find("Does its folder exist?"), std::string::npos) << error;
}

}  // namespace
}  // namespace torchamp::checkpoint
