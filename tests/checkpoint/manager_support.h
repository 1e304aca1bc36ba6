#pragma once
// States that show whether they are whole, for the tests of CheckpointManager.

#include <filesystem>
#include <set>
#include <string>

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "checkpoint/checkpoint_support.h"
#include "torchamp/checkpoint/checkpoint.h"
#include "torchamp/checkpoint/checkpoint_manager.h"

namespace torchamp::checkpoint {

// Every number in it is `number`.
inline base::StateDict numbered_state(int64_t number, int64_t num_elements = 500) {
  base::StateDict state;
  state.set("number", number);
  state.set("tensor", torch::full({num_elements}, number));
  return state;
}

// The number of the state in `path`, after checking that it is whole.
inline int64_t number_in(const std::filesystem::path& path) {
  const base::StateDict state = load(path);
  const int64_t number = state.at("number").to_int();
  EXPECT_TRUE((state.at("tensor").to_tensor() == number).all().item<bool>()) << path;
  return number;
}

inline std::set<std::string> names_in(const std::filesystem::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    names.insert(entry.path().filename().string());
  }
  return names;
}

}  // namespace torchamp::checkpoint
