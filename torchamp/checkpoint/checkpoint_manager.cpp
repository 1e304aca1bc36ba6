#include "torchamp/checkpoint/checkpoint_manager.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <csignal>
#include <string_view>
#include <system_error>
#include <utility>

#include <unistd.h>

#include <c10/util/Exception.h>

#include "torchamp/base/error.h"
#include "torchamp/checkpoint/archive_writer.h"
#include "torchamp/checkpoint/atomic_file.h"
#include "torchamp/checkpoint/checkpoint.h"
#include "torchamp/checkpoint/host_copy.h"
#include "torchamp/checkpoint/pickler.h"

namespace torchamp::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr const char* kStateKey = "checkpoint_manager";
constexpr const char* kPartial = ".partial";
constexpr std::string_view kStepInfix = ".step-";

// <folder>/<stem><middle><extension> of where `path` really lies: hard links need one file system.
fs::path sibling(const fs::path& path, const std::string& middle) {
  const fs::path target = follow_links(path);
  fs::path name = target.stem();
  name += middle;
  name += target.extension();
  return target.has_parent_path() ? target.parent_path() / name : name;
}

struct StepFile {
  int64_t step;
  fs::path file;
};

// The step that `name` is of, when it is exactly the name that step_path() gives.
std::optional<int64_t> step_in(const std::string& name, const fs::path& path) {
  const std::string prefix = follow_links(path).stem().string() + std::string(kStepInfix);
  if (name.compare(0, prefix.size(), prefix) != 0) return std::nullopt;
  int64_t step = -1;
  std::from_chars(name.data() + prefix.size(), name.data() + name.size(), step);
  if (step < 0 || step_path(path, step).filename() != name) return std::nullopt;
  return step;
}

// Calls `visit` with each name in `path`'s folder. A folder that cannot be read has none.
template <typename Visit>
void for_each_neighbour(const fs::path& path, const Visit& visit) {
  const fs::path folder = best_path(path).parent_path();
  std::error_code error;
  for (fs::directory_iterator it(folder.empty() ? "." : folder, error), end; !error && it != end;
       it.increment(error)) {
    visit(it->path().filename().string());
  }
}

// From the newest on.
std::vector<StepFile> step_files(const fs::path& path) {
  std::vector<StepFile> found;
  for_each_neighbour(path, [&](const std::string& name) {
    if (const auto step = step_in(name, path)) found.push_back({*step, step_path(path, *step)});
  });
  std::sort(found.begin(), found.end(),
            [](const StepFile& a, const StepFile& b) { return a.step > b.step; });
  return found;
}

// Leaves `keep_last` steps up to `step`.
void remove_older(const fs::path& path, int64_t step, int64_t keep_last) {
  int64_t num_kept = 0;
  for (const StepFile& old : step_files(path)) {
    if (old.step <= step && num_kept++ < keep_last) continue;
    if (::unlink(old.file.c_str()) == 0 || errno == ENOENT) continue;
    throw base::CheckpointError(
        "[CheckpointManager] '" + path.string() + "' was written, but the older '" +
        old.file.string() + "' could not be removed: \"" + std::generic_category().message(errno) +
        "\". Does it belong to another user?");
  }
}

// Second names that a killed process did not finish would hold their disk space for good. The
// caller holds the lock of `path`, so nobody is at work on one.
void remove_leftovers(const fs::path& path) {
  const std::string best = best_path(path).filename().string();
  for_each_neighbour(path, [&](const std::string& name) {
    const fs::path of = fs::path(name).stem();
    if (of.string() + kPartial != name || (of != best && !step_in(of.string(), path))) return;
    ::unlink((best_path(path).parent_path() / name).c_str());
  });
}

struct Plan {
  fs::path path;
  int64_t step = 0;
  int64_t keep_last = 1;
  bool is_best = false;
};

void write(Pickled pickled, const Plan& plan) {
  AtomicFile file(plan.path);
  if (plan.keep_last > 1 || plan.is_best) remove_leftovers(plan.path);
  write_archive(std::move(pickled), plan.path, file);
  if (plan.keep_last > 1) file.add_name(step_path(plan.path, plan.step));
  // Before `path`, which says that this is the best one.
  if (plan.is_best) file.add_name(best_path(plan.path));
  file.commit();
  if (plan.keep_last > 1) remove_older(plan.path, plan.step, plan.keep_last);
}

// The newest checkpoint that `read` accepts.
template <typename Read>
LastGood first_good(const fs::path& path, const Read& read) {
  LastGood found;
  std::vector<fs::path> files = checkpoint_files(path);
  if (files.empty() || files.front() != path) files.insert(files.begin(), path);
  for (const fs::path& file : files) {
    try {
      read(file);
      found.file = file;
      return found;
    } catch (const base::CheckpointError& error) {
      found.passed_over.push_back({file, error.what()});
    }
  }
  std::string text = "[find_last_good] No checkpoint of '" + path.string() + "' is good:";
  for (const LastGood::PassedOver& each : found.passed_over) text += " " + each.reason;
  throw base::CheckpointError(text);
}

// Signals are for the threads of the program; those that are faults of this thread stay.
class NoSignals {
 public:
  NoSignals() {
    sigset_t blocked;
    ::sigfillset(&blocked);
    for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT}) {
      ::sigdelset(&blocked, fault);
    }
    ::pthread_sigmask(SIG_SETMASK, &blocked, &before_);
  }
  ~NoSignals() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  NoSignals(const NoSignals&) = delete;
  NoSignals& operator=(const NoSignals&) = delete;

 private:
  sigset_t before_{};
};

}  // namespace

CheckpointManager::CheckpointManager(fs::path path, CheckpointManagerOptions options)
    : path_(std::move(path)), options_(options) {
  TORCH_CHECK_VALUE(options.keep_last >= 1, "[CheckpointManager] keep_last is ", options.keep_last,
                    "; 1 or more is accepted.");
}

CheckpointManager::~CheckpointManager() {
  try {
    wait();
  } catch (const std::exception& error) {
    TORCH_WARN(error.what());
  }
}

void CheckpointManager::save(base::StateDict state, int64_t step, std::optional<double> metric) {
  TORCH_CHECK_VALUE(step >= 0, "[CheckpointManager] step is ", step, "; 0 or more is accepted.");
  const std::lock_guard<std::mutex> lock(mutex_);
  finish_earlier();
  Plan plan{path_, step, options_.keep_last, false};
  plan.is_best =
      options_.keep_best && metric && !std::isnan(*metric) && (!best_ || *metric < best_->metric);
  const std::optional<Best> best = plan.is_best ? Best{*metric, step} : best_;
  if (options_.keep_best) state.set(kStateKey, to_state_dict(best));
  Pickled pickled = pickle(state);
  if (!options_.background) {
    write(std::move(pickled), plan);
    best_ = best;
    return;
  }
  state = {};  // so that only others are counted as owners of the storages
  detach_from_others(pickled.storages, path_);
  start([this, job = std::make_shared<Pickled>(std::move(pickled)), plan] {
    try {
      write(std::move(*job), plan);
    } catch (...) {
      error_ = std::current_exception();
    }
  });
  best_on_disk_ = std::exchange(best_, best);
}

// Runs `work` in a thread of its own; in this one where no more threads can be had.
void CheckpointManager::start(const std::function<void()>& work) {
  const NoSignals inherited_by_the_thread;
  try {
    writer_ = std::make_unique<std::thread>(work);
  } catch (const std::system_error&) {
    writer_ = std::make_unique<std::thread>();
    work();
  }
  writer_process_ = ::getpid();
}

void CheckpointManager::wait() {
  const std::lock_guard<std::mutex> lock(mutex_);
  finish_earlier();
}

void CheckpointManager::finish_earlier() {
  if (!writer_) return;
  if (writer_process_ != ::getpid()) {
    // The thread runs in the process that forked this one; here is only its handle.
    [[maybe_unused]] const std::thread* handle = writer_.release();
    return;
  }
  if (writer_->joinable()) writer_->join();
  writer_.reset();
  if (!error_) return;
  best_ = best_on_disk_;
  std::rethrow_exception(std::exchange(error_, nullptr));
}

std::optional<CheckpointManager::Best> CheckpointManager::best() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return best_;
}

base::StateDict CheckpointManager::state_dict() const { return to_state_dict(best()); }

base::StateDict CheckpointManager::to_state_dict(const std::optional<Best>& best) {
  base::StateDict state;
  if (!best) return state;
  state.set("best_metric", best->metric);
  state.set("best_step", best->step);
  return state;
}

void CheckpointManager::load_state_dict(const base::StateDict& state) {
  std::optional<Best> best;
  if (!state.empty()) {
    best = {state.at("best_metric").to_double("best_metric"),
            state.at("best_step").to_int("best_step")};
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  finish_earlier();
  best_ = best;
}

fs::path step_path(const fs::path& path, int64_t step) {
  const std::string digits = std::to_string(step);
  constexpr size_t kWidth = 8;  // a listing by name is one by step, up to 10^8
  return sibling(path, std::string(kStepInfix) +
                           std::string(kWidth - std::min(kWidth, digits.size()), '0') + digits);
}

fs::path best_path(const fs::path& path) { return sibling(path, ".best"); }

std::vector<fs::path> checkpoint_files(const fs::path& path) {
  std::vector<fs::path> files;
  std::error_code ignored;
  if (fs::exists(path, ignored)) files.push_back(path);
  for (StepFile& step : step_files(path)) files.push_back(std::move(step.file));
  if (fs::exists(best_path(path), ignored)) files.push_back(best_path(path));
  return files;
}

bool is_checkpoint_name(const fs::path& file, const fs::path& path) {
  if (file == path) return true;
  if (file.parent_path() != path.parent_path()) return false;
  const fs::path whole = file.extension() == kPartial ? file.parent_path() / file.stem() : file;
  return whole == path || whole == best_path(path) || step_in(whole.filename().string(), path);
}

LastGood find_last_good(const fs::path& path) {
  return first_good(path, [](const fs::path& file) { verify(file); });
}

LoadedLastGood load_last_good(const fs::path& path) {
  LoadedLastGood loaded;
  loaded.good = first_good(path, [&](const fs::path& file) { loaded.state = load(file); });
  return loaded;
}

}  // namespace torchamp::checkpoint
