#include "torchamp/ops/choices.h"

#include <array>
#include <atomic>
#include <cstdlib>
#include <utility>

#include <c10/util/Exception.h>

#include "torchamp/base/error.h"
#include "torchamp/ops/choice_table.h"
#include "torchamp/ops/install.h"

namespace torchamp::ops {
namespace {

// Reasons not to choose; choices are on while there is none.
std::atomic<int> num_reasons{0};
std::atomic<bool> is_off_by_environment{false};
std::atomic<bool> is_off_by_call{false};

void give_reason(std::atomic<bool>& reason, bool holds) {
  if (reason.exchange(holds) != holds) num_reasons += holds ? 1 : -1;
}

std::string environment() {
  const char* value = std::getenv("TORCHAMP_OPS_CHOICES");
  return value == nullptr ? std::string() : value;
}

// The names of the times in a checkpoint, in the order of kWays.
constexpr std::array<const char*, kWays.size()> kTimeNames = {
    "libtorch_us", "float32_us", "channels_last_us", "float32_channels_last_us"};

Way parse_way(const std::string& name) {
  for (const Way way : kWays) {
    if (name == to_string(way)) return way;
  }
  throw base::CheckpointError("[ops choices] The way '" + base::printable(name) +
                              "' is not known; LibTorch's, float32, channels_last and float32 "
                              "channels_last are accepted. Was the file written by a later "
                              "version?");
}

Choice parse_choice(const base::StateDict& entry) {
  Choice choice;
  choice.op = entry.at("op").to_string("op");
  choice.arguments = entry.at("arguments").to_string("arguments");
  for (size_t i = 0; i < kWays.size(); ++i) {
    const base::Value* us = entry.find(kTimeNames[i]);
    if (us != nullptr) choice.us[i] = us->to_double(kTimeNames[i]);
  }
  choice.way = parse_way(entry.at("way").to_string("way"));
  entry.at(kTimeNames[static_cast<size_t>(choice.way)]);  // what was not measured is not chosen
  return choice;
}

}  // namespace

namespace detail {

bool choices_are_on() { return num_reasons.load(std::memory_order_relaxed) == 0; }

void read_choices_environment() { give_reason(is_off_by_environment, environment() == "off"); }

std::vector<Choice> choices_of(const base::StateDict& state) {
  const std::vector<base::Value>& items = state.at("choices").to_items("choices");
  if (items.size() > static_cast<size_t>(kMaxChoices)) {
    throw base::CheckpointError(
        "[ops choices] The checkpoint holds " + std::to_string(items.size()) + " choices; up to " +
        std::to_string(kMaxChoices) + " are accepted. Is the file damaged?");
  }
  std::vector<Choice> choices;
  for (const base::Value& item : items) {
    choices.push_back(parse_choice(item.to_dict("choice")));
  }
  return choices;
}

}  // namespace detail

const char* to_string(Way way) {
  switch (way) {
    case Way::kLibTorch:
      return "LibTorch's";
    case Way::kFloat32:
      return "float32";
    case Way::kChannelsLast:
      return "channels_last";
    case Way::kFloat32ChannelsLast:
      return "float32 channels_last";
  }
  TORCH_INTERNAL_ASSERT(false, "unknown way");
}

bool choosing() { return installed() && detail::choices_are_on(); }

void set_choosing(bool on) { give_reason(is_off_by_call, !on); }

NoChoices::NoChoices() { ++num_reasons; }
NoChoices::~NoChoices() { --num_reasons; }

base::StateDict choices_state_dict() {
  base::List items;
  for (const Choice& choice : choices()) {
    base::StateDict entry;
    entry.set("op", choice.op);
    entry.set("arguments", choice.arguments);
    for (size_t i = 0; i < kWays.size(); ++i) {
      if (choice.us[i].has_value()) entry.set(kTimeNames[i], *choice.us[i]);
    }
    entry.set("way", to_string(choice.way));
    items.items.emplace_back(std::move(entry));
  }
  base::StateDict state;
  state.set("choices", std::move(items));
  return state;
}

std::string choices_environment_error() {
  const std::string value = environment();
  if (value.empty() || value == "on" || value == "off") return {};
  return "[TORCHAMP_OPS_CHOICES] The environment variable TORCHAMP_OPS_CHOICES is '" +
         base::printable(value) + "'; on, off or no value is accepted.";
}

}  // namespace torchamp::ops
