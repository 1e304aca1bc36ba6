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

base::Loading prepare_rng_state_dict(const StateDict& dict) {
  base::Loading loading;
  std::vector<std::pair<at::Generator, at::Tensor>> states;
  const auto add = [&](at::Generator generator, const base::Value& value, const std::string& who) {
    const at::Tensor& state = value.to_tensor(who);
    const at::Tensor present = get_state(generator);
    if (!state.defined() || state.scalar_type() != at::kByte || state.sizes() != present.sizes()) {
      throw base::CheckpointError(who + " is not a generator's state, " +
                                  std::to_string(present.numel()) +
                                  " bytes of uint8 are expected; was it saved on another device?");
    }
    try {
      at::Generator trial = generator.clone();  // what the generator refuses, its copy does
      set_state(trial, state.contiguous());
    } catch (const c10::Error& error) {
      const std::string text = error.what_without_backtrace();
      throw base::CheckpointError(
          who + " is refused by the generator: " + text.substr(0, text.find('\n')));
    }
    states.emplace_back(std::move(generator), state.contiguous());
  };
  loading.differences.attempt([&] { add(generator_of(at::kCPU), dict.at("cpu"), "'cpu'"); });
  loading.differences.attempt([&] {
    const base::Value* cuda = dict.find("cuda");
    if (cuda == nullptr) return;
    const std::vector<base::Value>& saved = cuda->to_items("'cuda'");
    const int64_t count = std::min<int64_t>(num_cuda_devices(), static_cast<int64_t>(saved.size()));
    for (int64_t i = 0; i < count; ++i) {
      add(cuda_generator(i), saved[static_cast<size_t>(i)], "'cuda'[" + std::to_string(i) + "]");
    }
  });
  loading.apply = [states = std::move(states)] {
    for (const auto& [generator, state] : states) {
      at::Generator handle = generator;
      set_state(handle, state);
    }
  };
  return loading;
}

void load_rng_state_dict(const StateDict& dict) {
  base::take_over(prepare_rng_state_dict(dict), "[load_rng_state_dict] ", ".");
}

}  // namespace torchamp::train
