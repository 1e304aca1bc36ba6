#include "torchamp/checkpoint/checkpoint_manager.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cmath>
#include <csignal>
#include <ctime>
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
#include "torchamp/checkpoint/run_id.h"

namespace torchamp::checkpoint {
namespace {

namespace fs = std::filesystem;

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
  if (name.find(kStepInfix) == std::string::npos) return std::nullopt;  // most names
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
  std::string run_id;
  int64_t step = 0;
  int64_t keep_last = 1;
  bool is_best = false;

  bool names_step() const { return keep_last > 1; }
};

// Leaves the run's newest steps up to this one, and all that is of other runs: who forgot --resume
// finds the earlier run's there.
void remove_older(const Plan& plan) {
  int64_t num_to_keep = plan.names_step() ? plan.keep_last : 0;  // `path` is the one of keep_last 1
  for (const StepFile& old : step_files(plan.path)) {
    const bool is_this = old.step == plan.step && plan.names_step();
    if (!is_this && run_id_of(old.file) != plan.run_id) continue;
    if (old.step <= plan.step && num_to_keep-- > 0) continue;
    if (::unlink(old.file.c_str()) == 0 || errno == ENOENT) continue;
    throw base::CheckpointError(
        "[CheckpointManager] '" + plan.path.string() + "' was written, but the older '" +
        old.file.string() + "' could not be removed: \"" + std::generic_category().message(errno) +
        "\". Does it belong to another user?");
  }
}

void write(Pickled pickled, const Plan& plan) {
  AtomicFile file(plan.path);
  remove_leftovers(plan.path);
  write_archive(std::move(pickled), plan.path, file);
  if (plan.names_step()) file.add_name(step_path(plan.path, plan.step));
  // Before `path`, which says that this is the best one.
  if (plan.is_best) file.add_name(best_path(plan.path));
  file.commit();
  remove_older(plan);
}

// The run that what stands in for `path` must be of, and who says so.
struct Origin {
  std::string run_id;
  std::string told_by;
  std::string reason;  // for taking a file of it
};

std::string time_text(fs::file_time_type time) {
  const std::time_t seconds =
      std::chrono::system_clock::to_time_t(std::chrono::file_clock::to_sys(time));
  std::tm parts{};
  ::gmtime_r(&seconds, &parts);
  std::array<char, 32> text{};
  const size_t size = std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M UTC", &parts);
  return {text.data(), size};
}

// `path` itself says it as long as its pickle can be read. Else the run that wrote last is meant:
// a new run may stand at step 40 where the steps of an earlier one go up to 120.
Origin origin_of(const fs::path& path, const std::vector<fs::path>& others) {
  if (const auto run_id = run_id_of(path)) {
    return {*run_id, "'" + path.string() + "'", "the newest whole checkpoint of its run"};
  }
  Origin origin{"", "", "the newest whole checkpoint beside it"};
  fs::file_time_type newest = fs::file_time_type::min();
  for (const fs::path& file : others) {
    std::error_code error;
    const fs::file_time_type time = fs::last_write_time(file, error);
    if (error || time <= newest) continue;
    const std::optional<std::string> run_id = run_id_of(file);
    if (!run_id) continue;
    newest = time;
    origin = {*run_id, "'" + file.string() + "', which was written last",
              "the newest whole checkpoint of the run that wrote one last, " + time_text(time) +
                  ", as '" + path.string() + "' does not tell its run"};
  }
  return origin;
}

LastGood::PassedOver told_as_others(const std::vector<fs::path>& files, const Origin& origin) {
  const size_t num_more = files.size() - 1;
  return {files.front(),
          "[find_last_good] '" + files.front().string() + "'" +
              (num_more > 0 ? " and " + std::to_string(num_more) + " more are" : " is") +
              " not of the run of " + origin.told_by + "."};
}

// The newest checkpoint that `read` accepts, of the run of `path`.
template <typename Read>
LastGood first_good(const fs::path& path, const Read& read) {
  LastGood found;
  const auto accepts = [&](const fs::path& file) {
    try {
      read(file);
      found.file = file;
      return true;
    } catch (const base::CheckpointError& error) {
      found.passed_over.push_back({file, error.what()});
      return false;
    }
  };
  if (accepts(path)) return found;
  std::vector<fs::path> others = checkpoint_files(path);
  std::erase(others, path);
  const Origin origin = origin_of(path, others);
  std::vector<fs::path> strangers;
  for (const fs::path& file : others) {
    const std::optional<std::string> run_id = run_id_of(file);
    if (run_id && *run_id != origin.run_id) {
      strangers.push_back(file);
    } else if (accepts(file)) {
      found.reason = origin.reason;
      if (!strangers.empty()) found.passed_over.push_back(told_as_others(strangers, origin));
      return found;
    }
  }
  std::string text = "[find_last_good] No checkpoint of '" + path.string() + "' is good:";
  for (const LastGood::PassedOver& each : found.passed_over) text += " " + each.reason;
  if (!strangers.empty()) {
    text += " " + told_as_others(strangers, origin).reason + " To go on from one of another run, " +
            "rename it to '" + path.string() + "'.";
  }
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
    : path_(std::move(path)), options_(options), run_id_(new_run_id()) {
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
  Plan plan{path_, run_id_, step, options_.keep_last, false};
  plan.is_best =
      options_.keep_best && metric && !std::isnan(*metric) && (!best_ || *metric < best_->metric);
  const std::optional<Best> best = plan.is_best ? Best{*metric, step} : best_;
  state.set(kManagerKey, to_state_dict(best));
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

base::StateDict CheckpointManager::state_dict() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return to_state_dict(best_);
}

base::StateDict CheckpointManager::to_state_dict(const std::optional<Best>& best) const {
  base::StateDict state;
  state.set(kRunIdKey, run_id_);
  if (!best) return state;
  state.set("best_metric", best->metric);
  state.set("best_step", best->step);
  return state;
}

base::Loading CheckpointManager::prepare_load(const base::StateDict& state) {
  base::Loading loading;
  std::optional<std::string> run_id;
  std::optional<Best> best;
  loading.differences.attempt([&] {
    const base::Value* saved = state.find(kRunIdKey);
    if (saved == nullptr) return;
    run_id = saved->to_string("'run_id'");
    if (!is_run_id(*run_id)) {
      throw base::CheckpointError("'run_id' is '" + base::printable(*run_id) +
                                  "', 32 hexadecimal digits are expected");
    }
  });
  if (state.contains("best_metric") || state.contains("best_step")) {
    best.emplace();
    loading.differences.attempt([&] {
      best->metric = state.at("best_metric").to_double("'best_metric'");
      if (std::isnan(best->metric)) {
        throw base::CheckpointError("'best_metric' is nan, which is never the best");
      }
    });
    loading.differences.attempt([&] {
      best->step = state.at("best_step").to_int("'best_step'");
      if (best->step < 0) {
        throw base::CheckpointError("'best_step' is " + std::to_string(best->step) +
                                    ", 0 or more is expected");
      }
    });
  }
  loading.apply = [this, run_id, best] {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (run_id) run_id_ = *run_id;
    best_ = best_on_disk_ = best;  // also where a write under way should fail
  };
  return loading;
}

void CheckpointManager::load_state_dict(const base::StateDict& state) {
  base::take_over(prepare_load(state), "[CheckpointManager] ", ". Is the checkpoint damaged?");
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
  std::exception_ptr refused;  // of a file that is whole
  loaded.good = first_good(path, [&](const fs::path& file) {
    try {
      loaded.state = load(file);
    } catch (const base::CheckpointError&) {
      verify(file);  // what is damaged is passed over
      refused = std::current_exception();
    }
  });
  if (refused) std::rethrow_exception(refused);
  return loaded;
}

}  // namespace torchamp::checkpoint
