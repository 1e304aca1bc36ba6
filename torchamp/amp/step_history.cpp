#include "torchamp/amp/step_history.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "torchamp/base/error.h"

namespace torchamp::amp::detail {
namespace {

constexpr const char* kWho = "[load_history_state_dict]";

int64_t count_at(const base::StateDict& state, const char* key) {
  const int64_t value = state.at(key).to_int(key);
  if (value < 0) {
    throw base::CheckpointError(std::string(kWho) + " '" + key + "' is " + std::to_string(value) +
                                "; 0 or more is accepted. Is the file damaged?");
  }
  return value;
}

base::Value to_value(const SkippedStep& step) {
  return base::Tuple{{step.iteration, step.scale, to_string(step.reason)}};
}

SkippedStep skipped_step_from(const base::Value& value) {
  const auto& items = value.to_items("skips");
  if (items.size() != 3) {
    throw base::CheckpointError(std::string(kWho) + " An entry of 'skips' has " +
                                std::to_string(items.size()) +
                                " items; iteration, scale and reason are accepted.");
  }
  SkippedStep step;
  step.iteration = items[0].to_int("skips: iteration");
  step.scale = items[1].to_double("skips: scale");
  const std::string& reason = items[2].to_string("skips: reason");
  if (reason != "inf" && reason != "nan") {
    throw base::CheckpointError(std::string(kWho) + " The reason of a skipped step is '" +
                                base::printable(reason) + "'; 'inf' or 'nan' is accepted.");
  }
  step.reason = reason == "nan" ? StepOutcome::Reason::kNan : StepOutcome::Reason::kInf;
  return step;
}

}  // namespace

void StepHistory::note(const StepOutcome& outcome, const at::Tensor& scale) {
  entries_.push_back({ended_ + 1, outcome, scale});
  take_read();
}

std::optional<int64_t> StepHistory::end_iteration() {
  ++ended_;
  take_read();
  const bool is_counted = entries_.empty() && counting_ == ended_;
  if (entries_.empty()) {
    close_iteration();
  }
  return is_counted ? std::optional(consecutive_skips_) : std::nullopt;
}

int64_t StepHistory::applied() {
  read_all();
  return applied_;
}

int64_t StepHistory::skipped() {
  read_all();
  return skipped_;
}

int64_t StepHistory::consecutive_skips() {
  read_all();
  return consecutive_skips_;
}

std::vector<SkippedStep> StepHistory::last_skips() {
  read_all();
  std::vector<SkippedStep> steps;
  steps.reserve(skips_.size());
  for (auto& skip : skips_) {
    if (skip.unread) {
      skip.step.scale = skip.unread->scale.item<double>();
      skip.step.reason = skip.unread->outcome.reason();
      skip.unread.reset();
    }
    steps.push_back(skip.step);
  }
  return steps;
}

base::StateDict StepHistory::state_dict() {
  base::List skips;
  for (const auto& step : last_skips()) {
    skips.items.push_back(to_value(step));
  }
  base::StateDict state;
  state.set("iterations", ended_);
  state.set("applied_steps", applied_);
  state.set("skipped_steps", skipped_);
  state.set("consecutive_skips", consecutive_skips_);
  state.set("skips", std::move(skips));
  return state;
}

void StepHistory::load_state_dict(const base::StateDict& state) {
  StepHistory loaded(static_cast<int64_t>(capacity_));
  loaded.ended_ = count_at(state, "iterations");
  loaded.applied_ = count_at(state, "applied_steps");
  loaded.skipped_ = count_at(state, "skipped_steps");
  loaded.consecutive_skips_ = count_at(state, "consecutive_skips");
  const auto& skips = state.at("skips").to_items("skips");
  for (size_t i = skips.size() - std::min(skips.size(), capacity_); i < skips.size(); ++i) {
    loaded.skips_.push_back({skipped_step_from(skips[i]), std::nullopt});
  }
  *this = std::move(loaded);
}

void StepHistory::take_read() {
  if (coming_ && (coming_->has_arrived() || entries_.size() > 2 * kMostUnread)) {
    settle_asked();
  } else if (!coming_ && entries_.size() > kMostUnread) {
    ask_for_oldest();
  }
  while (!entries_.empty() && entries_.front().outcome.is_read()) {
    take(entries_.front());
    entries_.pop_front();
  }
}

void StepHistory::ask_for_oldest() {
  std::vector<at::Tensor> found;
  for (const auto& entry : entries_) {
    if (entry.outcome.is_read()) {
      continue;
    }
    const at::Tensor& each = entry.outcome.found_inf();
    if (!found.empty() && each.device() != found.front().device()) {
      break;
    }
    found.push_back(each);
    asked_.push_back(entry.outcome);
  }
  if (found.empty()) {
    return;
  }
  coming_.emplace(found);
  if (coming_->has_arrived()) {  // the host's own numbers
    settle_asked();
  }
}

void StepHistory::settle_asked() {
  const std::vector<double> found = coming_->get();
  for (size_t i = 0; i < asked_.size(); ++i) {
    asked_[i].settle(found[i] != 0.0);
  }
  coming_.reset();
  asked_.clear();
}

void StepHistory::read_all() {
  if (coming_) {
    settle_asked();
  }
  for (const auto& entry : entries_) {
    take(entry);
  }
  entries_.clear();
  if (counting_ <= ended_) {
    close_iteration();
  }
}

void StepHistory::take(const Entry& entry) {
  if (entry.iteration != counting_) {
    close_iteration();
    counting_ = entry.iteration;
  }
  if (entry.outcome.applied()) {
    ++applied_;
    counting_applied_ = true;
    return;
  }
  ++skipped_;
  counting_skipped_ = true;
  if (capacity_ > 0) {
    if (skips_.size() == capacity_) {
      skips_.pop_front();
    }
    skips_.push_back({{entry.iteration, 0.0, StepOutcome::Reason::kInf}, entry});
  }
}

void StepHistory::close_iteration() {
  if (counting_skipped_) {
    ++consecutive_skips_;
  } else if (counting_applied_) {
    consecutive_skips_ = 0;
  }
  counting_applied_ = false;
  counting_skipped_ = false;
}

}  // namespace torchamp::amp::detail
