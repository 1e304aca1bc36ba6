#include "torchamp/train/rng_state.h"

#include <algorithm>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

namespace torchamp::train {
namespace {

using base::StateDict;

int64_t num_cuda_devices() { return at::hasCUDA() ? static_cast<int64_t>(at::getNumGPUs()) : 0; }

at::Generator generator_of(at::Device device) {
  return at::globalContext().defaultGenerator(device);
}

at::Generator cuda_generator(int64_t index) {
  return generator_of(at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(index)));
}

at::Tensor get_state(at::Generator generator) {  // a handle; mutex() wants it mutable
  const std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.get_state();
}

void set_state(at::Generator& generator, const at::Tensor& state) {
  const std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_state(state);
}

}  // namespace

StateDict rng_state_dict() {
  StateDict dict;
  dict.set("cpu", get_state(generator_of(at::kCPU)));
  base::List cuda;
  for (int64_t i = 0; i < num_cuda_devices(); ++i) {
    cuda.items.emplace_back(get_state(cuda_generator(i)));
  }
  dict.set("cuda", std::move(cuda));
  return dict;
}

void load_rng_state_dict(const StateDict& dict) {
  std::vector<std::pair<at::Generator, at::Tensor>> states;
  const auto add = [&](at::Generator generator, const base::Value& value, const std::string& who) {
    const at::Tensor& state = value.to_tensor(who);
    const at::Tensor present = get_state(generator);
    if (!state.defined() || state.scalar_type() != at::kByte || state.sizes() != present.sizes()) {
      throw base::CheckpointError("[load_rng_state_dict] " + who + " is not a generator's state; " +
                                  std::to_string(present.numel()) +
                                  " bytes of uint8 are expected. Was it saved on another device?");
    }
    states.emplace_back(std::move(generator), state.contiguous());
  };
  add(generator_of(at::kCPU), dict.at("cpu"), "'cpu'");
  if (const base::Value* cuda = dict.find("cuda")) {
    const std::vector<base::Value>& saved = cuda->to_items("'cuda'");
    const int64_t count = std::min<int64_t>(num_cuda_devices(), static_cast<int64_t>(saved.size()));
    for (int64_t i = 0; i < count; ++i) {
      add(cuda_generator(i), saved[static_cast<size_t>(i)], "'cuda'[" + std::to_string(i) + "]");
    }
  }
  std::vector<at::Tensor> before;
  try {
    for (auto& [generator, state] : states) {
      before.push_back(get_state(generator));
      set_state(generator, state);
    }
  } catch (const c10::Error& error) {
    for (size_t i = 0; i < before.size(); ++i) set_state(states[i].first, before[i]);
    const std::string text = error.what_without_backtrace();
    throw base::CheckpointError("[load_rng_state_dict] a generator refuses its state: " +
                                text.substr(0, text.find('\n')));
  }
}

}  // namespace torchamp::train
