#include "torchamp/ops/choice_table.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <limits>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>

#include <ATen/Context.h>
#include <ATen/Parallel.h>

namespace torchamp::ops {
namespace detail {
namespace {

using Clock = std::chrono::steady_clock;

// The float32 path must be this much faster: two that are level stay LibTorch's.
constexpr double kMargin = 0.95;
// A measurement ends after kRounds, or kBudget and kLeastRounds; sooner where one way is slower by
// kClear, which noise does not turn around.
constexpr int kRounds = 30;
constexpr int kLeastRounds = 3;
constexpr double kBudgetUs = 1000;
constexpr double kClear = 1.3;
// LibTorch's first call makes oneDNN's primitives, a few milliseconds: in a call so long that tells
// nothing against a difference by kClear.
constexpr double kLongUs = 50000;

struct Table {
  std::shared_mutex mutex;
  std::vector<Choice> choices;
  std::unordered_map<std::string, size_t> places;  // of op + ' ' + arguments
  std::mutex measuring;
  std::atomic<uint32_t> generation{1};  // of what threads remember

  static std::string key(const std::string& op, const std::string& arguments) {
    return op + ' ' + arguments;
  }
  std::optional<Way> find(const std::string& key) {
    const std::shared_lock lock(mutex);
    const auto place = places.find(key);
    if (place == places.end()) return std::nullopt;
    return choices[place->second].way;
  }
  bool is_full() {
    const std::shared_lock lock(mutex);
    return choices.size() >= static_cast<size_t>(kMaxChoices);
  }
  // The following two under a lock.
  void clear() {
    choices.clear();
    places.clear();
  }
  void put(Choice choice) {
    const auto [place, is_new] = places.emplace(key(choice.op, choice.arguments), choices.size());
    if (is_new) {
      choices.push_back(std::move(choice));
    } else {
      choices[place->second] = std::move(choice);
    }
  }
};

Table& table() {
  static Table instance;
  return instance;
}

std::atomic<bool> widens_half{true};
std::atomic<TimesHook> times_hook{nullptr};
thread_local bool is_inside = false;

// What a thread has seen; a slot that another call takes over is looked up in the table again.
struct Seen {
  struct Slot {
    uint64_t first = 0, second = 0;
    uint32_t generation = 0;
    Way way = Way::kLibTorch;
  };
  static constexpr size_t kSlots = 1024;  // 24 KiB a thread; a ResNet-50 has about 100 calls
  std::array<Slot, kSlots> slots;
};

Seen::Slot& slot_of(const CallHash& hash) {
  thread_local std::unique_ptr<Seen> seen;
  if (!seen) seen = std::make_unique<Seen>();
  return seen->slots[hash.first() % Seen::kSlots];
}

double us_of(const std::function<void(Way)>& run, Way way) {
  const auto start = Clock::now();
  run(way);
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

bool differ_clearly(double x, double y) { return std::max(x, y) > kClear * std::min(x, y); }

void measure(const std::function<void(Way)>& run, Choice& choice) {
  double& libtorch = choice.libtorch_us;
  double& float32 = choice.float32_us;
  libtorch = us_of(run, Way::kLibTorch);
  try {
    float32 = us_of(run, Way::kFloat32);
  } catch (const c10::Error&) {  // no memory for the copies, say
    float32 = std::numeric_limits<double>::infinity();
    return;
  }
  if (std::min(libtorch, float32) > kLongUs && differ_clearly(libtorch, float32)) return;
  libtorch = float32 = std::numeric_limits<double>::infinity();
  const auto start = Clock::now();
  for (int round = 1; round <= kRounds; ++round) {
    libtorch = std::min(libtorch, us_of(run, Way::kLibTorch));
    float32 = std::min(float32, us_of(run, Way::kFloat32));
    const double spent = std::chrono::duration<double, std::micro>(Clock::now() - start).count();
    if (spent > kBudgetUs && (round >= kLeastRounds || differ_clearly(libtorch, float32))) break;
  }
}

}  // namespace

Rule rule_for(at::ScalarType dtype) {
  if (dtype == at::kHalf && widens_half.load(std::memory_order_relaxed)) return Rule::kFloat32;
  return choices_are_on() && !is_inside && !at::in_parallel_region() ? Rule::kChoose
                                                                     : Rule::kLibTorch;
}

void set_widens_half(bool on) { widens_half = on; }

Choosing::Choosing() { is_inside = true; }
Choosing::~Choosing() { is_inside = false; }

std::optional<Way> remembered(const CallHash& hash) {
  const Seen::Slot& slot = slot_of(hash);
  if (slot.first == hash.first() && slot.second == hash.second() &&
      slot.generation == table().generation.load(std::memory_order_acquire)) {
    return slot.way;
  }
  return std::nullopt;
}

Way choose(const CallHash& hash, const std::string& op, const std::string& arguments,
           const std::function<void(Way)>& run) {
  Table& all = table();
  const uint32_t generation = all.generation.load(std::memory_order_acquire);
  const auto remember = [&](Way way) {
    slot_of(hash) = {hash.first(), hash.second(), generation, way};
    return way;
  };
  const std::string key = Table::key(op, arguments);
  if (const auto known = all.find(key)) return remember(*known);
  if (at::globalContext().deterministicAlgorithms()) return Way::kLibTorch;
  const std::lock_guard one_at_a_time(all.measuring);
  if (const auto known = all.find(key)) return remember(*known);
  if (all.is_full()) return remember(Way::kLibTorch);
  Choice choice{op, arguments};
  measure(run, choice);
  double libtorch = choice.libtorch_us, float32 = choice.float32_us;
  if (const TimesHook hook = times_hook) hook(libtorch, float32);
  choice.way = float32 < kMargin * libtorch ? Way::kFloat32 : Way::kLibTorch;
  const std::unique_lock lock(all.mutex);
  all.put(choice);
  return remember(choice.way);
}

void set_times_hook(TimesHook hook) { times_hook = hook; }

}  // namespace detail

std::vector<Choice> choices() {
  detail::Table& all = detail::table();
  const std::shared_lock lock(all.mutex);
  return all.choices;
}

ChoiceCount count_choices() {
  detail::Table& all = detail::table();
  const std::shared_lock lock(all.mutex);
  ChoiceCount count{static_cast<int64_t>(all.choices.size()), 0};
  for (const Choice& each : all.choices) count.float32 += each.way == Way::kFloat32 ? 1 : 0;
  return count;
}

void clear_choices() {
  detail::Table& all = detail::table();
  const std::unique_lock lock(all.mutex);
  all.clear();
  ++all.generation;
}

void load_choices_state_dict(const base::StateDict& state) {
  const std::vector<Choice> loaded = detail::choices_of(state);
  detail::Table& all = detail::table();
  const std::unique_lock lock(all.mutex);
  size_t num_new = 0;
  for (const Choice& each : loaded) {
    num_new += all.places.contains(detail::Table::key(each.op, each.arguments)) ? 0 : 1;
  }
  if (all.choices.size() + num_new > static_cast<size_t>(kMaxChoices)) all.clear();
  for (const Choice& each : loaded) all.put(each);
  ++all.generation;
}

}  // namespace torchamp::ops
