// GradScaler against Python: replays tests/golden/scaler_trajectories.json, written by
// make_scaler_golden.py, and expects the same bits in scale, tracker and parameters.

#include <fstream>

#include <nlohmann/json.hpp>

#include "amp/support.h"

namespace torchamp::test {
namespace {

using nlohmann::json;

float number(const json& value) {
  return value.is_string() ? std::stof(value.get<std::string>()) : value.get<float>();
}

at::Tensor tensor(const json& values) {
  std::vector<float> numbers;
  for (const auto& value : values) {
    numbers.push_back(number(value));
  }
  return torch::tensor(numbers);
}

struct Replay {
  explicit Replay(const json& trajectory)
      : scaler(ready({.init_scale = trajectory["options"]["init_scale"],
                      .growth_factor = trajectory["options"]["growth_factor"],
                      .backoff_factor = trajectory["options"]["backoff_factor"],
                      .growth_interval = trajectory["options"]["growth_interval"],
                      .warn_after_skips = 0})) {
    for (const auto& size : trajectory["sizes"]) {
      std::vector<at::Tensor> owned;
      for (int i = 0; i < size.get<int>(); ++i) {
        owned.push_back(torch::zeros({3}).requires_grad_());
      }
      parameters.push_back(owned);
      optimizers.push_back(sgd(owned, 0.5));
    }
    saved = scaler.state_dict();
  }

  void iterate(const json& event) {
    for (size_t o = 0; o < optimizers.size(); ++o) {
      const auto& entry = event["optimizers"][o];
      for (size_t i = 0; i < parameters[o].size(); ++i) {
        parameters[o][i].mutable_grad() = tensor(entry["gradients"][i]);
      }
      if (entry["unscale"].get<bool>()) {
        scaler.unscale_(*optimizers[o]);
      }
      if (entry["step"].get<bool>()) {
        scaler.step(*optimizers[o]);
      }
    }
    scaler.update();
  }

  void apply(const json& event) {
    const std::string op = event["op"];
    if (op == "iterate") {
      iterate(event);
    } else if (op == "set") {
      scaler.set_growth_factor(event["growth_factor"]);
      scaler.set_backoff_factor(event["backoff_factor"]);
      scaler.set_growth_interval(event["growth_interval"]);
    } else if (op == "new_scale") {
      scaler.update(event["value"].get<double>());
    } else if (op == "save") {
      saved = scaler.state_dict();
    } else {
      scaler.load_state_dict(saved);
    }
  }

  amp::GradScaler scaler;
  base::StateDict saved;
  std::vector<std::vector<at::Tensor>> parameters;
  std::vector<std::unique_ptr<torch::optim::SGD>> optimizers;
};

TEST(GradScalerGolden, FollowsPythonBitForBit) {
  std::ifstream file(TORCHAMP_GOLDEN_DIR "/scaler_trajectories.json");
  ASSERT_TRUE(file) << "tests/golden/scaler_trajectories.json is missing";
  const json golden = json::parse(file);
  int events = 0;
  const Warnings warnings;  // gradients are set by hand, so scale() is not called in between
  for (const auto& trajectory : golden["trajectories"]) {
    Replay replay(trajectory);
    for (const auto& event : trajectory["events"]) {
      SCOPED_TRACE("seed " + trajectory["seed"].dump() + " event " + std::to_string(events++));
      replay.apply(event);
      const auto state = replay.scaler.state_dict();
      for (const auto& [key, expected] : event["state"].items()) {
        ASSERT_EQ(state.at(key).to_double(), expected.get<double>()) << key;
      }
      ASSERT_EQ(state.size(), event["state"].size());
      for (size_t o = 0; o < replay.parameters.size(); ++o) {
        for (size_t i = 0; i < replay.parameters[o].size(); ++i) {
          ASSERT_TRUE(replay.parameters[o][i].detach().equal(tensor(event["parameters"][o][i])));
        }
      }
    }
  }
  EXPECT_EQ(events, 400);
}

}  // namespace
}  // namespace torchamp::test
