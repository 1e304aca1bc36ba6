// Which checkpoints of a run are kept, under which names, and what the background adds.

#include <atomic>
#include <chrono>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <limits>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <c10/core/CPUAllocator.h>
#include <torch/torch.h>

#include "checkpoint/archive.h"
#include "checkpoint/checkpoint_support.h"
#include "checkpoint/manager_support.h"
#include "checkpoint/system_calls.h"
#include "support/temporary_folder.h"
#include "torchamp/base/error.h"
#include "torchamp/checkpoint/checkpoint_manager.h"

namespace torchamp::checkpoint {
namespace {

namespace fs = std::filesystem;
using base::CheckpointError;
using base::StateDict;
using system_calls::Action;
using system_calls::Answer;
using system_calls::Intercept;
using Names = std::set<std::string>;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// Holds the writer at its first byte until release().
class Stall {
 public:
  Stall()
      : intercept_([this](const std::string& call, const std::string&) {
          if (call == "write" || call == "fallocate") {
            is_there_ = true;
            while (!is_released_) ::usleep(200);
          }
          return Answer{};
        }) {}
  ~Stall() { release(); }
  Stall(const Stall&) = delete;
  Stall& operator=(const Stall&) = delete;
  void wait_until_there() {
    while (!is_there_) ::usleep(200);
  }
  void release() { is_released_ = true; }

 private:
  std::atomic<bool> is_there_ = false;
  std::atomic<bool> is_released_ = false;
  Intercept intercept_;
};

// Counts the bytes of CPU tensors that are alive.
class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* const data = std::malloc(std::max<size_t>(bytes, 1));
    const std::lock_guard<std::mutex> lock(mutex());
    sizes()[data] = bytes;
    live() += bytes;
    peak() = std::max(peak(), live());
    return {data, data, &free, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
  static size_t& live() {
    static size_t bytes = 0;
    return bytes;
  }
  static size_t& peak() {
    static size_t bytes = 0;
    return bytes;
  }

 private:
  static void free(void* data) {
    const std::lock_guard<std::mutex> lock(mutex());
    live() -= sizes().at(data);
    sizes().erase(data);
    std::free(data);
  }
  static std::mutex& mutex() {
    static std::mutex instance;
    return instance;
  }
  static std::unordered_map<void*, size_t>& sizes() {
    static std::unordered_map<void*, size_t> instance;
    return instance;
  }
};

class CountBytes {
 public:
  CountBytes() : before_(c10::GetCPUAllocator()) {
    c10::SetCPUAllocator(&allocator(), 0);
    CountingAllocator::peak() = CountingAllocator::live();
  }
  ~CountBytes() { c10::SetCPUAllocator(before_, 0); }
  CountBytes(const CountBytes&) = delete;
  CountBytes& operator=(const CountBytes&) = delete;
  static size_t live() { return CountingAllocator::live(); }
  static size_t peak() { return CountingAllocator::peak(); }

 private:
  static CountingAllocator& allocator() {
    static CountingAllocator instance;
    return instance;
  }
  c10::Allocator* before_;
};

TEST(CheckpointManager, KeepsOneFileByDefault) {
  const TemporaryFolder folder;
  CheckpointManager manager(folder / "last.pt");
  for (int64_t step = 1; step <= 3; ++step) manager.save(numbered_state(step), step, 1.0);
  manager.wait();
  EXPECT_EQ(number_in(folder / "last.pt"), 3);
  EXPECT_EQ(names_in(folder.path()), Names{"last.pt"});
  EXPECT_TRUE(
      same(load(folder / "last.pt").at("checkpoint_manager").to_dict(), manager.state_dict()));
}

TEST(CheckpointManager, KeepsTheLastOnesByStepAndTouchesNoOtherFile) {
  const TemporaryFolder folder;
  const Names others = {"last.step-12.pt",        "last.step-00000001.pt.bak",
                        "last.step-0000000x.pt",  "last.step-000000001.pt",
                        "other.step-00000001.pt", "last.step-00000001.safetensors",
                        "last.step-.pt",          "last.step--0000001.pt"};
  for (const std::string& name : others) write_file(folder / name, "x");
  CheckpointManager manager(folder / "last.pt", {.keep_last = 2});
  for (const int64_t step : {5, 90, 100, 123456789}) manager.save(numbered_state(step), step);
  manager.wait();
  Names expected = {"last.pt", "last.step-123456789.pt", "last.step-00000100.pt"};
  expected.insert(others.begin(), others.end());
  EXPECT_EQ(names_in(folder.path()), expected);
  EXPECT_EQ(number_in(folder / "last.step-00000100.pt"), 100);
  EXPECT_EQ(number_in(folder / "last.pt"), 123456789);
  EXPECT_TRUE(fs::equivalent(folder / "last.pt", folder / "last.step-123456789.pt"));
}

TEST(CheckpointManager, RemovesStepsThatTheRunHasLeftBehind) {
  const TemporaryFolder folder;
  CheckpointManager manager(folder / "last.pt", {.keep_last = 3});
  for (const int64_t step : {10, 20, 30}) manager.save(numbered_state(step), step);
  manager.save(numbered_state(15), 15);  // the run went back to step 10
  manager.wait();
  EXPECT_EQ(names_in(folder.path()),
            (Names{"last.pt", "last.step-00000015.pt", "last.step-00000010.pt"}));
}

TEST(CheckpointManager, KeepsTheBestWhereNaNAndNoneNeverAre) {
  const TemporaryFolder folder;
  const fs::path best = folder / "last.best.pt";
  CheckpointManager manager(folder / "last.pt", {.keep_best = true});
  manager.save(numbered_state(1), 1, kNaN);
  manager.save(numbered_state(2), 2);
  manager.wait();
  EXPECT_FALSE(fs::exists(best));
  EXPECT_FALSE(manager.best());
  const std::vector<std::pair<double, int64_t>> metrics_and_bests = {
      {2.0, 3}, {kNaN, 3}, {2.0, 3}, {1.5, 6}, {1.75, 6}, {-1.0, 8}};
  int64_t step = 3;
  for (const auto& [metric, best_step] : metrics_and_bests) {
    manager.save(numbered_state(step), step, metric);
    manager.wait();
    EXPECT_EQ(number_in(best), best_step);
    EXPECT_EQ(manager.best()->step, best_step);
    EXPECT_EQ(number_in(folder / "last.pt"), step++);
  }
  EXPECT_EQ(names_in(folder.path()), (Names{"last.pt", "last.best.pt"}));
}

TEST(CheckpointManager, TheBestSurvivesAResume) {
  const TemporaryFolder folder;
  const fs::path path = folder / "last.pt";
  CheckpointManager(path, {.keep_best = true}).save(numbered_state(1), 1, 0.5);
  CheckpointManager resumed(path, {.keep_best = true});
  resumed.load_state_dict(load(path).at("checkpoint_manager").to_dict());
  EXPECT_EQ(resumed.best()->metric, 0.5);
  resumed.save(numbered_state(2), 2, 0.75);
  resumed.wait();
  EXPECT_EQ(number_in(best_path(path)), 1);
  EXPECT_TRUE(same(load(path).at("checkpoint_manager").to_dict(), resumed.state_dict()));
  resumed.save(numbered_state(3), 3, 0.25);
  resumed.wait();
  EXPECT_EQ(number_in(best_path(path)), 3);
  StateDict wrong;
  wrong.set("best_metric", "low");
  EXPECT_THROW(resumed.load_state_dict(wrong), CheckpointError);
  EXPECT_EQ(resumed.best()->step, 3);
}

TEST(CheckpointManager, GivesEachRunAnIdentityThatAResumeKeeps) {
  const CheckpointManager first("a.pt");
  CheckpointManager second("a.pt");
  const StateDict before = second.state_dict();
  const std::string id = before.at("run_id").to_string();
  EXPECT_EQ(id.size(), 32U);
  EXPECT_EQ(id.find_first_not_of("0123456789abcdef"), std::string::npos);
  EXPECT_FALSE(same(first.state_dict(), before));
  const base::Loading loading = second.prepare_load(first.state_dict());
  EXPECT_TRUE(loading.differences.empty());
  EXPECT_TRUE(same(second.state_dict(), before));
  loading.apply();
  EXPECT_TRUE(same(second.state_dict(), first.state_dict()));
  second.load_state_dict({});  // of an earlier version
  EXPECT_TRUE(same(second.state_dict(), first.state_dict()));
}

TEST(CheckpointManager, RefusesAStateThatNoRunCanHaveLeftAndListsItsFaults) {
  CheckpointManager manager("a.pt");
  const StateDict before = manager.state_dict();
  StateDict wrong;
  wrong.set("run_id", "the first");
  wrong.set("best_metric", kNaN);
  wrong.set("best_step", -1);
  EXPECT_EQ(manager.prepare_load(wrong).differences.count(), 3U);
  EXPECT_THROW(manager.load_state_dict(wrong), CheckpointError);
  EXPECT_TRUE(same(manager.state_dict(), before));
  StateDict half;
  half.set("best_step", 3);
  EXPECT_EQ(manager.prepare_load(half).differences.count(), 1U);
}

// A run that keeps three steps, up to `last_step`.
void leave_a_run(const fs::path& path, int64_t last_step) {
  CheckpointManager manager(path, {.keep_last = 3});
  for (const int64_t back : {20, 10, 0}) {
    manager.save(numbered_state(last_step - back), last_step - back);
  }
}

TEST(CheckpointManager, RemovesNoStepOfAnotherRun) {
  const TemporaryFolder folder;
  const Names earlier = {"last.pt", "last.step-00000100.pt", "last.step-00000110.pt",
                         "last.step-00000120.pt"};
  leave_a_run(folder / "last.pt", 120);
  for (const int64_t keep_last : {1, 2}) {
    CheckpointManager manager(folder / "last.pt", {.keep_last = keep_last});
    for (const int64_t step : {10, 20, 30}) manager.save(numbered_state(step), step);
    manager.wait();
    Names expected = earlier;
    if (keep_last == 2) expected.insert({"last.step-00000020.pt", "last.step-00000030.pt"});
    EXPECT_EQ(names_in(folder.path()), expected);
  }
}

TEST(CheckpointManager, ALowerNumberToKeepRemovesTheRunsOwn) {
  for (const int64_t keep_last : {1, 2}) {
    const TemporaryFolder folder;
    const fs::path path = folder / "last.pt";
    leave_a_run(path, 120);
    CheckpointManager manager(path, {.keep_last = keep_last});
    manager.load_state_dict(load(path).at("checkpoint_manager").to_dict());
    manager.save(numbered_state(130), 130);
    manager.wait();
    EXPECT_EQ(names_in(folder.path()), keep_last == 1 ? Names{"last.pt"}
                                                      : (Names{"last.pt", "last.step-00000120.pt",
                                                               "last.step-00000130.pt"}));
  }
}

TEST(CheckpointManager, CopiesWhereTheFileSystemHasNoLinks) {
  const TemporaryFolder folder;
  const fs::path path = folder / "last.pt";
  for (const int error : {EPERM, EOPNOTSUPP, EMLINK}) {
    const Intercept intercept([&](const std::string& call, const std::string&) {
      return Answer{Action::kPass, call == "link" ? error : 0};
    });
    CheckpointManager manager(path, {.keep_last = 2, .keep_best = true});
    for (int64_t step = 1; step <= 3; ++step) manager.save(numbered_state(step, 400000), step, 1.0);
    manager.wait();
    EXPECT_EQ(names_in(folder.path()),
              (Names{"last.pt", "last.step-00000003.pt", "last.step-00000002.pt", "last.best.pt"}));
    EXPECT_EQ(number_in(best_path(path)), 1);
    EXPECT_EQ(number_in(step_path(path, 2)), 2);
    EXPECT_EQ(read_file(path), read_file(step_path(path, 3)));
    EXPECT_FALSE(fs::equivalent(path, step_path(path, 3)));
  }
}

TEST(CheckpointManager, NamesOnlyWhatIsOnTheDiskAndRemovesOldOnesLast) {
  const TemporaryFolder folder;
  CheckpointManager manager(folder / "last.pt", {.keep_last = 2, .keep_best = true});
  for (const int64_t step : {1, 2}) manager.save(numbered_state(step), step, 3.0 - step);
  manager.wait();
  std::vector<std::string> calls;
  const Intercept intercept([&](const std::string& call, const std::string& made) {
    std::string line = call;
    if (!made.empty()) line += " " + fs::path(made).filename().string();
    if (calls.empty() || calls.back() != line) calls.push_back(line);
    return Answer{};
  });
  manager.save(numbered_state(3), 3, 0.0);
  manager.wait();
  EXPECT_EQ(calls,
            (std::vector<std::string>{
                "fallocate", "write", "fsync", "unlink last.step-00000003.pt.partial",
                "link last.step-00000003.pt.partial", "rename last.step-00000003.pt",
                "unlink last.best.pt.partial", "link last.best.pt.partial", "rename last.best.pt",
                "rename last.pt", "fsync", "unlink last.step-00000001.pt"}));
}

TEST(CheckpointManager, FollowsASymbolicLinkWithAllItsNames) {
  const TemporaryFolder folder;
  fs::create_directory(folder / "big");
  fs::create_symlink("big/a.pt", folder / "last.pt");
  CheckpointManager manager(folder / "last.pt", {.keep_last = 2, .keep_best = true});
  for (const int64_t step : {1, 2, 3}) manager.save(numbered_state(step), step, 1.0);
  manager.wait();
  EXPECT_EQ(names_in(folder / "big"),
            (Names{"a.pt", "a.best.pt", "a.step-00000002.pt", "a.step-00000003.pt"}));
  EXPECT_TRUE(fs::is_symlink(folder / "last.pt"));
  EXPECT_EQ(number_in(find_last_good(folder / "last.pt").file), 3);
}

TEST(CheckpointManager, KeepsTheModeOfTheFileThatIsReplaced) {
  const TemporaryFolder folder;
  const fs::path path = folder / "last.pt";
  CheckpointManager manager(path, {.background = false});
  manager.save(numbered_state(1), 1);
  ::chmod(path.c_str(), 0640);
  manager.save(numbered_state(2), 2);
  struct stat status {};
  ASSERT_EQ(::stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777U, 0640U);
}

TEST(CheckpointManager, RefusesACountBelowOneAndANegativeStep) {
  EXPECT_THROW(CheckpointManager("last.pt", {.keep_last = 0}), c10::ValueError);
  CheckpointManager manager("last.pt");
  EXPECT_THROW(manager.save({}, -1), c10::ValueError);
}

TEST(ManagerBackground, WhatIsDoneAfterwardsDoesNotReachTheFile) {
  const TemporaryFolder folder;
  const fs::path path = folder / "last.pt";
  std::vector<float> borrowed(1000, 4.0F);
  const torch::Tensor weight = torch::full({300, 400}, 1.0);
  const torch::Tensor base = torch::arange(20.0).reshape({4, 5});
  StateDict state;
  state.set("weight", weight);
  state.set("again", weight);
  state.set("row", base.select(0, 1));
  state.set("transposed", base.t());
  state.set("as_ints", weight.view(torch::kInt32));
  state.set("conjugate", torch::complex(base, base).conj());
  state.set("borrowed", torch::from_blob(borrowed.data(), {1000}));
  state.set("undefined", torch::Tensor());
  state.set("empty", torch::empty({0, 3}));
  state.set("bf16", base.to(torch::kBFloat16));
  state.set("list", base::List{{base[2], 7}});
  CheckpointManager manager(path);
  state.set("checkpoint_manager", manager.state_dict());
  fs::create_directory(folder / "at_once");
  const fs::path at_once = folder / "at_once/last.pt";
  save(at_once, state);

  Stall stall;
  manager.save(state, 1);
  stall.wait_until_there();
  weight.fill_(2.0);
  base.zero_();
  std::fill(borrowed.begin(), borrowed.end(), 5.0F);
  state.set("weight", 3);
  stall.release();
  manager.wait();
  EXPECT_EQ(read_file(path), read_file(at_once));
  const StateDict loaded = load(path);
  EXPECT_TRUE(loaded.at("weight").to_tensor().is_alias_of(loaded.at("again").to_tensor()));
  EXPECT_TRUE(loaded.at("row").to_tensor().is_alias_of(loaded.at("transposed").to_tensor()));
  EXPECT_EQ(loaded.at("transposed").to_tensor().strides(), base.t().strides());
}

TEST(ManagerBackground, CopiesOnceWhatOthersHoldAndMovesTheRest) {
  const TemporaryFolder folder;
  const CountBytes count;
  constexpr size_t kBytes = 4 * 250000;
  const torch::Tensor held = torch::ones({250000});
  StateDict state;
  state.set("held", held);
  state.set("again", held);
  state.set("half", held.slice(0, 100, 200));
  state.set("as_ints", held.view(torch::kInt32));
  state.set("given", torch::ones({250000}));
  state.set("given_view", state.at("given").to_tensor().slice(0, 0, 10));
  const size_t before = CountBytes::live();
  EXPECT_EQ(before, 2 * kBytes);

  CheckpointManager manager(folder / "last.pt");
  Stall stall;
  manager.save(std::move(state), 1);
  stall.wait_until_there();
  EXPECT_EQ(CountBytes::live(), before + kBytes);
  // A second state waits for the first: its copy is made when that of the first is gone.
  std::atomic<bool> is_saved = false;
  std::thread other([&] {
    StateDict second;
    second.set("held", held);
    manager.save(std::move(second), 2);
    is_saved = true;
  });
  ::usleep(20000);
  EXPECT_FALSE(is_saved);
  stall.release();
  other.join();
  manager.wait();
  EXPECT_EQ(CountBytes::peak(), before + kBytes);
  EXPECT_EQ(CountBytes::live(), kBytes);  // `held`
}

TEST(ManagerBackground, ErrorsAreThrownOnceByTheNextCall) {
  const TemporaryFolder folder;
  CheckpointManager manager(folder / "absent/last.pt", {.keep_last = 2, .keep_best = true});
  manager.save(numbered_state(1), 1, 1.0);
  EXPECT_THROW(manager.save(numbered_state(2), 2, 0.5), CheckpointError);
  EXPECT_FALSE(manager.best());
  fs::create_directory(folder / "absent");
  manager.save(numbered_state(3), 3, 2.0);
  manager.wait();
  EXPECT_EQ(manager.best()->step, 3);
  EXPECT_EQ(number_in(folder / "absent/last.pt"), 3);
}

TEST(ManagerBackground, AnEntryThatNoFileCanHoldIsToldAtOnce) {
  const TemporaryFolder folder;
  CheckpointManager manager(folder / "last.pt");
  StateDict state;
  state.set("text", "\xff");
  EXPECT_THROW(manager.save(std::move(state), 1), CheckpointError);
  EXPECT_TRUE(names_in(folder.path()).empty());
}

TEST(ManagerBackground, AnErrorThatNobodyAskedForIsAWarning) {
  struct Handler : c10::WarningHandler {
    void process(const c10::Warning& warning) override { text += warning.msg(); }
    std::string text;
  };
  Handler handler;
  c10::WarningHandler* const before = c10::WarningUtils::get_warning_handler();
  c10::WarningUtils::set_warning_handler(&handler);
  CheckpointManager("/nowhere/last.pt").save(numbered_state(1), 1);
  c10::WarningUtils::set_warning_handler(before);
  EXPECT_NE(handler.text.find("'/nowhere/last.pt' was not written"), std::string::npos);
}

TEST(ManagerBackground, SignalsStayWithTheThreadsOfTheProgram) {
  const TemporaryFolder folder;
  sigset_t seen;
  ::sigemptyset(&seen);
  const Intercept intercept([&](const std::string& call, const std::string&) {
    if (call == "write") ::pthread_sigmask(SIG_SETMASK, nullptr, &seen);
    return Answer{};
  });
  CheckpointManager manager(folder / "last.pt");
  manager.save(numbered_state(1), 1);
  manager.wait();
  for (const int signal : {SIGINT, SIGTERM, SIGALRM, SIGXFSZ, SIGCHLD, SIGUSR1}) {
    EXPECT_TRUE(::sigismember(&seen, signal)) << signal;
  }
  EXPECT_FALSE(::sigismember(&seen, SIGSEGV));
  sigset_t here;
  ::pthread_sigmask(SIG_SETMASK, nullptr, &here);
  EXPECT_FALSE(::sigismember(&here, SIGINT));
}

TEST(ManagerBackground, AForkedChildHasNoWriteUnderWay) {
  const TemporaryFolder folder;
  CheckpointManager manager(folder / "last.pt");
  Stall stall;
  manager.save(numbered_state(1), 1);
  stall.wait_until_there();
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(20);
    manager.wait();
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  stall.release();
  manager.wait();
  EXPECT_EQ(number_in(folder / "last.pt"), 1);
}

TEST(ManagerBackground, TwoManagersOfOnePathTakeTurns) {
  const TemporaryFolder folder;
  const fs::path path = folder / "last.pt";
  std::vector<std::thread> threads;
  for (int64_t i = 0; i < 2; ++i) {
    threads.emplace_back([&, i] {
      CheckpointManager manager(path, {.keep_last = 2, .keep_best = true});
      for (int64_t round = 0; round < 20; ++round) {
        const int64_t step = 2 * round + i;
        manager.save(numbered_state(step), step, 1.0 / static_cast<double>(step + 1));
      }
      manager.wait();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GE(number_in(path), 38);
  for (const fs::path& file : checkpoint_files(path)) number_in(file);
  for (const std::string& name : names_in(folder.path())) {
    EXPECT_EQ(name.find(".partial"), std::string::npos) << name;
  }
}

// One bit of the tensor's data in `file`; its other names keep what they are.
void damage(const fs::path& file) {
  std::string bytes = read_file(file);
  bytes[bytes.size() / 2] ^= 1;
  fs::remove(file);
  write_file(file, bytes);
}

std::string error_of_find(const fs::path& path) {
  try {
    return "found " + find_last_good(path).file.string();
  } catch (const CheckpointError& error) {
    return error.what();
  }
}

TEST(FindLastGood, TakesTheNewestWholeFileAndSaysWhyNotTheOthers) {
  const TemporaryFolder folder;
  const fs::path path = folder / "last.pt";
  {
    CheckpointManager manager(path, {.keep_last = 3, .keep_best = true});
    for (int64_t step = 9; step <= 11; ++step) {
      manager.save(numbered_state(step), step, static_cast<double>(step));
    }
  }
  EXPECT_EQ(find_last_good(path).file, path);
  EXPECT_EQ(find_last_good(path).reason, "");
  damage(path);
  EXPECT_EQ(find_last_good(path).file, step_path(path, 11));
  EXPECT_EQ(find_last_good(path).reason, "the newest whole checkpoint of its run");
  fs::remove(path);
  fs::remove(step_path(path, 11));
  write_file(folder / "last.pt.partial", "half");
  damage(step_path(path, 10));
  const LastGood good = find_last_good(path);
  EXPECT_EQ(good.file, step_path(path, 9));
  ASSERT_EQ(good.passed_over.size(), 2U);
  EXPECT_EQ(good.passed_over[0].file, path);
  EXPECT_NE(good.passed_over[0].reason.find("does not exist"), std::string::npos)
      << good.passed_over[0].reason;
  EXPECT_NE(good.passed_over[1].reason.find("checksum"), std::string::npos)
      << good.passed_over[1].reason;
  fs::remove(step_path(path, 9));
  EXPECT_EQ(find_last_good(path).file, best_path(path));
  damage(best_path(path));
  try {
    find_last_good(path);
    FAIL() << "nothing is good";
  } catch (const CheckpointError& error) {
    const std::string text = error.what();
    for (const char* name : {"last.pt", "last.step-00000010.pt", "last.best.pt"}) {
      EXPECT_NE(text.find(name), std::string::npos) << text;
    }
  }
}

TEST(CheckpointManager, LoadsTheNewestWholeCheckpoint) {
  TemporaryFolder folder;
  const fs::path path = folder / "last.pt";
  EXPECT_THROW(load_last_good(path), CheckpointError);
  {
    CheckpointManager manager(path, {.keep_last = 2});
    for (int64_t step = 1; step <= 2; ++step) manager.save(numbered_state(step), step);
  }
  EXPECT_TRUE(same(load_last_good(path).state, load(path)));
  fs::remove(path);
  write_file(path, "PK\x03\x04 half");
  fs::remove(step_path(path, 2));
  const LoadedLastGood loaded = load_last_good(path);
  EXPECT_EQ(loaded.good.file, step_path(path, 1));
  ASSERT_EQ(loaded.good.passed_over.size(), 1U);
  EXPECT_EQ(loaded.good.passed_over[0].file, path);
  EXPECT_TRUE(same(loaded.state, load(step_path(path, 1))));
}

TEST(CheckpointManager, PassesOverNoWholeFileThatCannotBeLoaded) {
  const TemporaryFolder folder;
  const fs::path path = folder / "last.pt";
  CheckpointManager(path, {.keep_last = 2}).save(numbered_state(1), 1);
  // The int 1: a value that is whole, and no dict.
  fs::remove(path);
  write_file(path, make_archive({{"data.pkl", "\x80\x02K\x01."}, {"version", "3\n"}}));
  ASSERT_EQ(find_last_good(path).file, path);
  try {
    load_last_good(path);
    FAIL() << "an older file was taken";
  } catch (const CheckpointError& error) {
    EXPECT_NE(std::string(error.what()).find("'" + path.string() + "' cannot be read"),
              std::string::npos)
        << error.what();
    EXPECT_NE(std::string(error.what()).find("an int"), std::string::npos) << error.what();
  }
}

TEST(CheckpointManager, KnowsEveryNameThatItMayWrite) {
  const fs::path path = "/run/last.pt";
  for (const char* name :
       {"last.pt", "last.pt.partial", "last.best.pt", "last.best.pt.partial",
        "last.step-00000120.pt", "last.step-00000120.pt.partial", "last.step-1234567890.pt"}) {
    EXPECT_TRUE(is_checkpoint_name(fs::path("/run") / name, path)) << name;
    EXPECT_FALSE(is_checkpoint_name(fs::path("/elsewhere") / name, path)) << name;
  }
  for (const char* name : {"last.csv", "last.best.csv", "last.step-120.pt", "last.step-.pt",
                           "last.step-00000120.csv", "first.pt", "last.pt.partial.partial"}) {
    EXPECT_FALSE(is_checkpoint_name(fs::path("/run") / name, path)) << name;
  }
}

TEST(FindLastGood, TakesNoFileOfAnotherRunForADamagedOne) {
  const TemporaryFolder folder;
  const fs::path path = folder / "last.pt";
  leave_a_run(path, 120);
  const auto save_new_run = [&](bool keep_best) {
    CheckpointManager manager(path, {.keep_last = 1, .keep_best = keep_best});
    manager.save(numbered_state(40), 40, 1.0);
  };
  save_new_run(false);
  const std::string whole = read_file(path);
  std::string other_tensor = whole;
  other_tensor[whole.size() / 2] ^= 1;
  // Its data differ, or its end is missing: the pickle tells the run all the same.
  for (const std::string& bytes : {other_tensor, whole.substr(0, whole.size() / 2)}) {
    write_file(path, bytes);
    const std::string text = error_of_find(path);
    EXPECT_NE(text.find("No checkpoint of '" + path.string() + "' is good"), std::string::npos)
        << text;
    EXPECT_NE(text.find("'" + step_path(path, 120).string() +
                        "' and 2 more are not of the run of '" + path.string() + "'."),
              std::string::npos)
        << text;
    EXPECT_NE(text.find("rename it to"), std::string::npos) << text;
  }
  // Its own best one, though the steps of the other are newer.
  save_new_run(true);
  damage(path);
  const LastGood good = find_last_good(path);
  EXPECT_EQ(good.file, best_path(path));
  ASSERT_EQ(good.passed_over.size(), 2U);
  EXPECT_EQ(good.passed_over[1].file, step_path(path, 120));
  // What was said works.
  fs::rename(step_path(path, 120), path);
  EXPECT_EQ(find_last_good(path).file, path);
}

TEST(FindLastGood, GoesByTheTimeOfTheFilesWhereTheNewestDoesNotTellItsRun) {
  const TemporaryFolder folder;
  const fs::path path = folder / "last.pt";
  leave_a_run(path, 120);
  leave_a_run(path, 40);
  // 2026-01-01 10:00 UTC is 1767261600 s after the epoch; the earlier run ended a day before.
  const auto at = [](int64_t seconds) {
    return std::chrono::file_clock::from_sys(
        std::chrono::sys_seconds(std::chrono::seconds(seconds)));
  };
  constexpr int64_t kDay = 86400;
  for (const int64_t step : {100, 110, 120}) {
    fs::last_write_time(step_path(path, step), at(1767261600 - kDay));
  }
  for (const int64_t step : {20, 30, 40})
    fs::last_write_time(step_path(path, step), at(1767261600));
  for (const bool is_there : {true, false}) {
    fs::remove(path);
    if (is_there) write_file(path, "PK\x03\x04 half");
    const LastGood good = find_last_good(path);
    EXPECT_EQ(good.file, step_path(path, 40));
    EXPECT_EQ(good.reason,
              "the newest whole checkpoint of the run that wrote one last, 2026-01-01 10:00 UTC, "
              "as '" +
                  path.string() + "' does not tell its run");
    ASSERT_EQ(good.passed_over.size(), 2U);
    EXPECT_NE(good.passed_over[1].reason.find("and 2 more are not of the run of '" +
                                              step_path(path, 40).string() +
                                              "', which was written last."),
              std::string::npos)
        << good.passed_over[1].reason;
  }
}

TEST(FindLastGood, DoesNotTakeADamagedIdentityForAnothers) {
  const TemporaryFolder folder;
  const fs::path path = folder / "last.pt";
  CheckpointManager manager(path, {.keep_last = 2});
  for (int64_t step = 1; step <= 2; ++step) manager.save(numbered_state(step), step);
  manager.wait();
  const std::string whole = read_file(path);
  const std::string id = manager.state_dict().at("run_id").to_string();
  for (const std::string& text : {id, std::string("run_id"), std::string("checkpoint_manager")}) {
    std::string bytes = whole;
    char& letter = bytes.at(bytes.find(text) + 3);
    letter = letter == 'a' ? 'b' : 'a';
    fs::remove(path);
    write_file(path, bytes);
    EXPECT_EQ(find_last_good(path).file, step_path(path, 2)) << text;
  }
}

TEST(FindLastGood, FilesWithoutAnIdentityAreOfOneRun) {
  const TemporaryFolder folder;
  const fs::path path = folder / "last.pt";
  for (const int64_t step : {1, 2}) save(step_path(path, step), numbered_state(step));
  save(path, numbered_state(2));
  damage(path);
  EXPECT_EQ(find_last_good(path).file, step_path(path, 2));
  CheckpointManager(path).save(numbered_state(3), 3);
  damage(path);
  // Nor has one from before PyTorch 1.6.
  fs::copy_file(golden("checkpoint/old/legacy_0_4.pt"), step_path(path, 9));
  EXPECT_NE(error_of_find(path).find("and 2 more are not of the run of"), std::string::npos)
      << error_of_find(path);
}

}  // namespace
}  // namespace torchamp::checkpoint
