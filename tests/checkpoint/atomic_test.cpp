// Whatever happens while a checkpoint is written, a good one stands under its name.

#include <atomic>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <torch/torch.h>

#include "checkpoint/checkpoint_support.h"
#include "torchamp/checkpoint/checkpoint.h"

namespace torchamp::checkpoint {
namespace {

namespace fs = std::filesystem;
using base::CheckpointError;
using base::StateDict;

// A state that shows whether it is whole: every number in it is `number`.
StateDict state(int64_t number) {
  StateDict dict;
  dict.set("number", number);
  dict.set("tensor", torch::full({5000}, number));
  return dict;
}

// The number of the state in `path`, after checking that it is whole.
int64_t number_in(const fs::path& path) {
  const StateDict dict = load(path);
  const int64_t number = dict.at("number").to_int();
  EXPECT_TRUE(same(dict, state(number)));
  return number;
}

std::string error_of(const fs::path& path, const StateDict& dict) {
  try {
    save(path, dict);
    return "";
  } catch (const CheckpointError& error) {
    return error.what();
  }
}

// Runs `work` in a child process and returns its wait status.
int in_child(const std::function<int()>& work) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(work());
  int status = 0;
  ::waitpid(child, &status, 0);
  return status;
}

void limit_file_size(rlim_t bytes) {
  rlimit limit{};
  ::getrlimit(RLIMIT_FSIZE, &limit);
  limit.rlim_cur = bytes;
  ::setrlimit(RLIMIT_FSIZE, &limit);
}

size_t num_files(const fs::path& folder) {
  return static_cast<size_t>(std::distance(fs::directory_iterator(folder), {}));
}

TEST(AtomicSave, SaysWhichFileAndWhyAndLeavesNothing) {
  const TemporaryFolder folder;
  write_file(folder / "file", "x");
  const auto expect = [&](const fs::path& path, const std::string& reason,
                          const std::string& cause) {
    const std::string error = error_of(path, state(1));
    EXPECT_NE(error.find("'" + path.string() + "' was not written"), std::string::npos) << error;
    EXPECT_NE(error.find("\"" + reason + "\""), std::string::npos) << error;
    EXPECT_NE(error.find(cause), std::string::npos) << error;
  };
  expect(folder / "absent/a.pt", "No such file or directory", "Does its folder exist?");
  expect(folder / "file/a.pt", "Not a directory", "Does its folder exist?");
  expect(folder.path(), "Is a directory", "");
  expect("/dev/null", "File exists", "");
  expect("/proc/a.pt", "No such file or directory", "");  // root too cannot make files there
  EXPECT_EQ(num_files(folder.path()), 1U);
}

TEST(AtomicSave, AnUnwritableFolderIsAnErrorForUsersWithoutRoot) {
  const TemporaryFolder folder;
  ASSERT_EQ(::chmod(folder.path().c_str(), 0555), 0);
  const int status = in_child([&] {
    if (::geteuid() == 0 && ::setuid(65534) != 0) return 2;
    const std::string error = error_of(folder / "a.pt", state(1));
    return error.find("Permission denied") != std::string::npos ? 0 : 1;
  });
  ::chmod(folder.path().c_str(), 0755);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(num_files(folder.path()), 0U);
}

TEST(AtomicSave, AFileSizeLimitAtAnyByteKeepsThePreviousCheckpoint) {
  const TemporaryFolder folder;
  const fs::path path = folder / "a.pt";
  save(path, state(1));
  const uintmax_t size = fs::file_size(path);
  const int status = in_child([&] {
    ::signal(SIGXFSZ, SIG_IGN);
    for (uintmax_t bytes = 0; bytes < size; bytes += bytes < 2000 ? 37 : 1501) {
      limit_file_size(bytes);
      const std::string error = error_of(path, state(2));
      if (error.find("\"File too large\"") == std::string::npos) return 1;
      if (error.find("a checkpoint that stood there is unchanged") == std::string::npos) return 2;
      if (number_in(path) != 1 || num_files(folder.path()) != 1) return 3;
    }
    limit_file_size(size);
    save(path, state(2));
    return 0;
  });
  EXPECT_EQ(status, 0);
  EXPECT_EQ(number_in(path), 2);
}

TEST(AtomicSave, AFullDiskKeepsThePreviousCheckpoint) {
  const TemporaryFolder folder;
  const fs::path path = folder / "a.pt";
  constexpr int kNoMount = 77;
  const int status = in_child([&] {
    // A small file system of our own, seen by this process alone.
    const bool is_root = ::geteuid() == 0;
    if (::unshare(is_root ? CLONE_NEWNS : CLONE_NEWNS | CLONE_NEWUSER) != 0) return kNoMount;
    ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr);
    if (::mount("tmpfs", folder.path().c_str(), "tmpfs", 0, "size=72k") != 0) return kNoMount;
    save(path, state(1));  // 44 KB
    for (int attempt = 0; attempt < 3; ++attempt) {
      const std::string error = error_of(path, state(2));
      if (error.find("\"No space left on device\"") == std::string::npos) return 1;
      if (error.find("Is the disk full?") == std::string::npos) return 2;
      if (number_in(path) != 1 || num_files(folder.path()) != 1) return 3;
    }
    return 0;
  });
  if (WEXITSTATUS(status) == kNoMount) {
    GTEST_SKIP() << "this user may not mount a small file system; the size limit above stands in";
  }
  EXPECT_EQ(status, 0);
}

TEST(AtomicSave, AProcessKilledAtAnyByteLeavesThePreviousCheckpoint) {
  const TemporaryFolder folder;
  const fs::path path = folder / "a.pt";
  save(path, state(0));
  const uintmax_t size = fs::file_size(path);
  int64_t number = 0;
  for (uintmax_t bytes = 0; bytes < size; bytes += bytes < 1500 ? 61 : 2003) {
    const int status = in_child([&] {
      rlimit no_core{};
      ::setrlimit(RLIMIT_CORE, &no_core);
      ::signal(SIGXFSZ, SIG_DFL);  // kills at the byte where the limit lies
      limit_file_size(bytes);
      save(path, state(number + 1));
      return 0;
    });
    ASSERT_TRUE(WIFSIGNALED(status)) << bytes;
    ASSERT_EQ(number_in(path), number) << bytes;
    if (bytes % 3 == 0) save(path, state(++number));  // over what the killed one left
  }
  save(path, state(++number));
  EXPECT_EQ(number_in(path), number);
  EXPECT_EQ(num_files(folder.path()), 1U);
}

TEST(AtomicSave, KillAtAnyMomentLeavesAWholeCheckpoint) {
  const TemporaryFolder folder;
  const fs::path path = folder / "a.pt";
  save(path, state(0));
  int64_t last = 0;
  for (int round = 0; round < 40; ++round) {
    const pid_t child = ::fork();
    if (child == 0) {
      for (int64_t number = last + 1;; ++number) save(path, state(number));
    }
    ::usleep(static_cast<useconds_t>(500 + 997 * round));  // 0.5 to 40 ms: some saves each
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    const int64_t number = number_in(path);
    ASSERT_GE(number, last);
    last = number;
  }
  EXPECT_GT(last, 0);
}

std::atomic<int> num_signals = 0;

TEST(AtomicSave, SignalsDuringWritingAreHarmless) {
  struct sigaction action {};
  struct sigaction before {};
  action.sa_handler = [](int) { ++num_signals; };  // without SA_RESTART: calls are interrupted
  ::sigaction(SIGALRM, &action, &before);
  const itimerval often{{0, 200}, {0, 200}};
  ::setitimer(ITIMER_REAL, &often, nullptr);
  const TemporaryFolder folder;
  for (int64_t number = 0; number < 50; ++number) {
    save(folder / "a.pt", state(number));
    EXPECT_EQ(number_in(folder / "a.pt"), number);
  }
  const itimerval never{};
  ::setitimer(ITIMER_REAL, &never, nullptr);
  ::sigaction(SIGALRM, &before, nullptr);
  EXPECT_GT(num_signals, 0);
}

TEST(AtomicSave, WritersOfOneFileTakeTurns) {
  const TemporaryFolder folder;
  const fs::path path = folder / "a.pt";
  std::vector<std::thread> threads;
  for (int64_t i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      for (int round = 0; round < 20; ++round) save(path, state(i));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LT(number_in(path), 4);
  EXPECT_EQ(num_files(folder.path()), 1U);
}

TEST(AtomicSave, FollowsASymbolicLink) {
  const TemporaryFolder folder;
  fs::create_directory(folder / "big");
  fs::create_symlink("big/a.pt", folder / "link.pt");
  save(folder / "link.pt", state(1));  // the target is not there yet
  save(folder / "link.pt", state(2));
  EXPECT_TRUE(fs::is_symlink(folder / "link.pt"));
  EXPECT_EQ(number_in(folder / "big/a.pt"), 2);
  EXPECT_EQ(num_files(folder / "big"), 1U);
}

}  // namespace
}  // namespace torchamp::checkpoint
