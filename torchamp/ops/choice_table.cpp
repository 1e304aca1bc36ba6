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

// Another way than the first must be this much faster: two that are level stay as they were.
constexpr double kMargin = 0.95;
// A look is some rounds of all ways, in turns, of which the least times count. It ends after
// kRounds, or kBudget and kLeastRounds.
constexpr int kRounds = 30;
constexpr int kLeastRounds = 3;
constexpr double kBudgetUs = 1000;
// Looks are taken until two that follow one another agree, and what was least in all of them says
// the same: a machine that other work disturbs does so for a while.
constexpr int kLooks = 6;
// No round begins after so long: calls of 10 ms are not made dozens of times.
constexpr double kMostUs = 50000;
// First calls make oneDNN's primitives, a few milliseconds: in calls so long that tells nothing
// against a difference by kClear, and more calls would be long to wait for.
constexpr double kClear = 1.3;
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

double us_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

double us_of(const std::function<void(Way)>& run, Way way) {
  const auto start = Clock::now();
  run(way);
  return us_since(start);
}

using Times = std::array<double, kWays.size()>;
constexpr double kForever = std::numeric_limits<double>::infinity();

size_t place(Way way) { return static_cast<size_t>(way); }

Way fastest(const Ways& ways, const Times& us) {
  Way best = ways.front();
  double limit = kMargin * us[place(best)];
  for (const Way way : ways) {
    if (us[place(way)] >= limit) continue;
    best = way;
    limit = us[place(way)];
  }
  return best;
}

// Each way once; those that fail take for ever.
Times first_calls(const std::function<void(Way)>& run, const Ways& ways) {
  Times us{};
  for (const Way way : ways) {
    us[place(way)] = kForever;
    try {
      us[place(way)] = us_of(run, way);
    } catch (const c10::Error&) {  // no memory for the copies, say
      if (way == ways.front()) throw;
    }
  }
  return us;
}

bool are_long_and_clear(const Ways& ways, const Times& us) {
  double least = kForever, second = kForever;
  for (const Way way : ways) {
    second = std::min(second, std::max(least, us[place(way)]));
    least = std::min(least, us[place(way)]);
  }
  return least > kLongUs && second > kClear * least;
}

// `begin`: of the first look.
Times look(const std::function<void(Way)>& run, const Ways& ways, Clock::time_point begin) {
  Times us;
  us.fill(kForever);
  const auto start = Clock::now();
  for (size_t round = 0; round < kRounds; ++round) {
    for (size_t i = 0; i < ways.size(); ++i) {
      const Way way = ways[(i + round) % ways.size()];
      us[place(way)] = std::min(us[place(way)], us_of(run, way));
    }
    if (us_since(start) > kBudgetUs && round + 1 >= kLeastRounds) break;
    if (us_since(begin) > kMostUs) break;
  }
  return us;
}

Times measure(const std::function<void(Way)>& run, const Ways& ways) {
  Times us = first_calls(run, ways);
  Ways working;
  for (const Way way : ways) {
    if (us[place(way)] < kForever) working.push_back(way);
  }
  if (working.size() == 1 || are_long_and_clear(working, us)) return us;
  for (const Way way : working) us[place(way)] = kForever;
  std::optional<Way> before;
  const auto begin = Clock::now();
  for (int i = 0; i < kLooks && us_since(begin) < kMostUs; ++i) {
    const Times seen = look(run, working, begin);
    for (const Way way : working) us[place(way)] = std::min(us[place(way)], seen[place(way)]);
    const Way now = fastest(working, seen);
    if (before == now && fastest(working, us) == now) break;
    before = now;
  }
  return us;
}

}  // namespace

Rule rule_for(at::ScalarType dtype) {
  const bool widens = dtype == at::kHalf && widens_half.load(std::memory_order_relaxed);
  return {widens ? Way::kFloat32 : Way::kLibTorch,
          choices_are_on() && !is_inside && !at::in_parallel_region()};
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
           const Ways& ways, const std::function<void(Way)>& run) {
  Table& all = table();
  const uint32_t generation = all.generation.load(std::memory_order_acquire);
  const auto remember = [&](Way way) {
    slot_of(hash) = {hash.first(), hash.second(), generation, way};
    return way;
  };
  const std::string key = Table::key(op, arguments);
  if (const auto known = all.find(key)) return remember(*known);
  if (ways.size() == 1) return remember(ways.front());
  if (at::globalContext().deterministicAlgorithms()) return ways.front();
  const std::lock_guard one_at_a_time(all.measuring);
  if (const auto known = all.find(key)) return remember(*known);
  if (all.is_full()) return remember(ways.front());
  Choice choice{op, arguments, {}, ways.front()};
  Times us = measure(run, ways);
  for (const Way way : ways) choice.us[place(way)] = us[place(way)];
  if (const TimesHook hook = times_hook) hook(choice);
  for (const Way way : ways) us[place(way)] = *choice.us[place(way)];
  choice.way = fastest(ways, us);
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
  ChoiceCount count;
  for (const Choice& each : all.choices) {
    ++count.all;
    count.float32 += each.way == Way::kFloat32 ? 1 : 0;
    count.channels_last += each.way == Way::kChannelsLast ? 1 : 0;
    count.float32_channels_last += each.way == Way::kFloat32ChannelsLast ? 1 : 0;
  }
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
