// The C++ side of bench/checkpoint_io.py: obeys one command a line on standard input and answers
// with the seconds that it took.
//
//   state MIB COUNT     the state to save: COUNT float32 tensors of MIB MiB in all
//   save PATH           checkpoint::save: to the disk, with checksums
//   hold PATH           how long a CheckpointManager that writes in the background holds the caller
//   copy                a memcpy of the state into fresh memory
//   load PATH           checkpoint::load: everything read, every checksum compared
//   open PATH           checkpoint::load with mmap
//   open_verified PATH  the same, every checksum compared

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "torchamp/base/state_dict.h"
#include "torchamp/checkpoint/checkpoint.h"
#include "torchamp/checkpoint/checkpoint_manager.h"

namespace {

namespace checkpoint = torchamp::checkpoint;
using torchamp::base::StateDict;

StateDict make_state(int64_t mebibytes, int64_t count) {
  torch::manual_seed(1);
  StateDict state;
  const int64_t numbers = mebibytes * (int64_t{1} << 20) / 4 / count;
  for (int64_t i = 0; i < count; ++i)
    state.set("tensor." + std::to_string(i), torch::randn(numbers));
  return state;
}

template <typename Work>
double seconds(const Work& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Bytes of the tensors in `loaded`; ends the program when they are not those of `state`.
void check(const StateDict& loaded, const StateDict& state) {
  for (const auto& [key, value] : state.entries()) {
    if (loaded.at(key).to_tensor().equal(value.to_tensor())) continue;
    std::cerr << "checkpoint_io: what was loaded is not what was saved\n";
    std::exit(1);
  }
}

}  // namespace

int main() {
  StateDict state;
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string command;
    std::string path;
    words >> command;
    double taken = 0.0;
    if (command == "state") {
      int64_t mebibytes = 0;
      int64_t count = 0;
      words >> mebibytes >> count;
      taken = seconds([&] { state = make_state(mebibytes, count); });
    } else if (command == "copy") {
      std::vector<std::unique_ptr<char[]>> copies;
      taken = seconds([&] {
        for (const auto& entry : state.entries()) {
          const at::Tensor& tensor = entry.value.to_tensor();
          copies.emplace_back(new char[tensor.nbytes()]);
          std::memcpy(copies.back().get(), tensor.const_data_ptr(), tensor.nbytes());
        }
      });
    } else if (words >> path; command == "save") {
      taken = seconds([&] { checkpoint::save(path, state); });
    } else if (command == "hold") {
      checkpoint::CheckpointManager manager(path, {.background = true});
      taken = seconds([&] { manager.save(state, 1); });
      manager.wait();
    } else if (command == "load" || command == "open" || command == "open_verified") {
      StateDict loaded;
      const checkpoint::LoadOptions options{.mmap = command != "load", .verify = command != "open"};
      taken = seconds([&] { loaded = checkpoint::load(path, options); });
      check(loaded, state);
    } else {
      std::cerr << "checkpoint_io: '" << command << "' is not a command\n";
      return 2;
    }
    std::cout << taken << std::endl;
  }
}
