#include "torchamp/train/run_state.h"

#include "torchamp/base/error.h"

namespace torchamp::train {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

double mean(double sum, int64_t count) {
  return count == 0 ? kNaN : sum / static_cast<double>(count);
}

// The one list of entries; `visit` writes or reads each.
template <typename State, typename Visit>
void for_each_entry(State& state, const Visit& visit) {
  visit("epoch", state.epoch);
  visit("next_batch", state.next_batch);
  visit("step", state.step);
  visit("skipped", state.skipped);
  visit("skipped_in_a_row", state.skipped_in_a_row);
  visit("epoch_applied", state.epoch_applied);
  visit("epoch_skipped", state.epoch_skipped);
  visit("epoch_examples", state.epoch_examples);
  visit("epoch_loss_sum", state.epoch_loss_sum);
  visit("epoch_norm_sum", state.epoch_norm_sum);
  visit("last_lr", state.last_lr);
  visit("last_train_loss", state.last_train_loss);
  visit("data_name", state.order.name);
  visit("data_size", state.order.size);
  visit("batch", state.order.batch);
  visit("accumulate", state.order.accumulate);
  visit("seed", state.order.seed);
  visit("precision", state.precision);
  visit("optimizer", state.optimizer);
}

struct Reader {
  const base::StateDict& dict;
  base::Differences& differences;

  template <typename T>
  void operator()(const char* key, T& value) const {
    differences.attempt([&] { read(dict.at(key), key, value); });
  }

 private:
  static void read(const base::Value& saved, const char* key, int64_t& value) {
    const int64_t number = saved.to_int(key);
    constexpr int64_t kMost = int64_t{1} << 53;  // counters of a run, far from their end
    if ((number < 0 || number > kMost) && std::string(key) != "seed") {
      throw base::CheckpointError("'" + std::string(key) + "' is " + std::to_string(number) +
                                  ", 0 to 2^53 is expected");
    }
    value = number;
  }
  static void read(const base::Value& saved, const char* key, double& value) {
    value = saved.to_double(key);
  }
  static void read(const base::Value& saved, const char* key, std::string& value) {
    value = saved.to_string(key);
  }
};

}  // namespace

std::string to_string(const DataOrder& order) {
  return std::to_string(order.size) + " examples of " + order.name + ", batch " +
         std::to_string(order.batch) + ", accumulate " + std::to_string(order.accumulate) +
         ", seed " + std::to_string(order.seed);
}

double RunState::mean_loss() const { return mean(epoch_loss_sum, epoch_examples); }
double RunState::mean_norm() const { return mean(epoch_norm_sum, epoch_applied); }

void RunState::begin_next_epoch() {
  last_train_loss = mean_loss();
  ++epoch;
  next_batch = 0;
  epoch_applied = 0;
  epoch_skipped = 0;
  epoch_examples = 0;
  epoch_loss_sum = 0.0;
  epoch_norm_sum = 0.0;
}

base::StateDict to_state_dict(const RunState& state) {
  base::StateDict dict;
  for_each_entry(state, [&](const char* key, const auto& value) { dict.set(key, value); });
  return dict;
}

RunState run_state_from(const base::StateDict& dict, base::Differences& differences) {
  RunState state;
  for_each_entry(state, Reader{dict, differences});
  return state;
}

}  // namespace torchamp::train
