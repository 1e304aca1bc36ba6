// GradScaler against Python: runs the programs of calls in scaler_programs.json, written by
// make_scaler_golden.py, and expects the same bits in scale, tracker, parameters and gradients.

#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <torch/torch.h>

#include "support/drop_warnings.h"
#include "support/golden.h"
#include "support/op_call.h"
#include "support/recipe.h"
#include "torchamp/amp/grad_scaler.h"

namespace torchamp::testing {
namespace {

using nlohmann::json;

at::Tensor gradient(char letter, const at::Tensor& parameter, uint64_t stream) {
  at::Tensor result = uniform(stream, parameter.sizes()) * 1024;
  if (letter != 'g') {
    const double infinity = std::numeric_limits<double>::infinity();
    const double bad = letter == 'i'   ? infinity
                       : letter == 'j' ? -infinity
                                       : std::numeric_limits<double>::quiet_NaN();
    result.view(-1)[static_cast<int64_t>(stream % static_cast<uint64_t>(result.numel()))] = bad;
  }
  return result.to(parameter.scalar_type());
}

class Program {
 public:
  explicit Program(const json& program)
      : seed_(program["seed"]),
        scaler_({.init_scale = program["options"]["init_scale"],
                 .growth_factor = program["options"]["growth_factor"],
                 .backoff_factor = program["options"]["backoff_factor"],
                 .growth_interval = program["options"]["growth_interval"],
                 .warn_after_skips = 0}) {
    for (const json& entry : program["optimizers"]) {
      std::vector<at::Tensor> owned;
      for (const json& parameter : entry["parameters"]) {
        owned.push_back(torch::zeros(parameter[1].get<std::vector<int64_t>>(),
                                     dtype_of(parameter[0].get<std::string>()))
                            .requires_grad_());
      }
      parameters_.push_back(owned);
      optimizers_.push_back(
          std::make_unique<torch::optim::SGD>(owned, torch::optim::SGDOptions(entry["lr"])
                                                         .momentum(entry["momentum"])
                                                         .weight_decay(entry["weight_decay"])));
    }
    scaler_.scale(torch::zeros({}));
    saved_ = scaler_.state_dict();
  }

  /// What the call answers by itself: for scale() the result's dtype and bits.
  json call(uint64_t number, const json& call) {
    const std::string what = call[0];
    if (what == "grads") {
      const std::string letters = call[2];
      for (size_t i = 0; i < letters.size(); ++i) {
        at::Tensor& parameter = parameters_.at(call[1]).at(i);
        parameter.mutable_grad() =
            letters[i] == '-' ? at::Tensor()
                              : gradient(letters[i], parameter, seed_ * 10000 + number * 10 + i);
      }
    } else if (what == "scale") {
      const at::Tensor loss =
          (uniform(seed_ * 10000 + number, {}) * 8).to(dtype_of(call[1].get<std::string>()));
      const at::Tensor scaled = scaler_.scale(loss);
      return {name_of(scaled.scalar_type()), fnv1a({scaled})};
    } else if (what == "unscale") {
      scaler_.unscale_(*optimizers_.at(call[1]));
    } else if (what == "step") {
      scaler_.step(*optimizers_.at(call[1]));
    } else if (what == "update") {
      scaler_.update();
    } else if (what == "update_to") {
      scaler_.update(call[1].get<double>());
    } else if (what == "update_to_tensor") {
      scaler_.update(torch::tensor(call[1].get<float>()));
    } else if (what == "save") {
      saved_ = scaler_.state_dict();
    } else if (what == "load") {
      scaler_.load_state_dict(saved_);
    } else if (what == "growth_factor") {
      scaler_.set_growth_factor(call[1]);
    } else if (what == "backoff_factor") {
      scaler_.set_backoff_factor(call[1]);
    } else if (what == "growth_interval") {
      scaler_.set_growth_interval(call[1]);
    } else {
      ADD_FAILURE() << "unknown call " << call;
    }
    return nullptr;
  }

  json state() const {
    json values = json::array();
    const base::StateDict dict = scaler_.state_dict();
    for (const auto& [key, value] : dict.entries()) {
      values.push_back(value.to_double());
    }
    return values;
  }

  std::string bits() const {
    std::vector<at::Tensor> tensors;
    std::vector<at::Tensor> gradients;
    for (const auto& owned : parameters_) {
      for (const at::Tensor& parameter : owned) {
        tensors.push_back(parameter);
        if (parameter.grad().defined()) {
          gradients.push_back(parameter.grad());
        }
      }
    }
    tensors.insert(tensors.end(), gradients.begin(), gradients.end());
    return fnv1a(tensors);
  }

 private:
  static std::string name_of(at::ScalarType dtype) {
    return dtype == at::kFloat ? "float32" : dtype == at::kDouble ? "float64" : toString(dtype);
  }

  uint64_t seed_;
  amp::GradScaler scaler_;
  base::StateDict saved_;
  std::vector<std::vector<at::Tensor>> parameters_;
  std::vector<std::unique_ptr<torch::optim::SGD>> optimizers_;
};

TEST(ScalerPrograms, AnswerAsPythonDoesBitForBit) {
  const auto golden = read_golden("scaler_programs.json");
  ASSERT_TRUE(golden) << "scaler_programs.json is missing; tests/golden/make_scaler_golden.py "
                         "writes it.";
  const DropWarnings no_warnings;  // gradients are set by hand, so scale() is not called in between
  int64_t calls = 0;
  int64_t refused = 0;
  for (const json& content : (*golden)["programs"]) {
    Program program(content);
    json state;
    json bits;
    for (size_t i = 0; i < content["calls"].size(); ++i, ++calls) {
      const json& call = content["calls"][i];
      const json& answer = content["answers"][i];
      SCOPED_TRACE("seed " + content["seed"].dump() + ", call " + std::to_string(i) + " " +
                   call.dump());
      if (answer.contains("error")) {
        ++refused;
        EXPECT_THROW(program.call(i, call), c10::Error);
      } else {
        json scaled;
        ASSERT_NO_THROW(scaled = program.call(i, call));
        EXPECT_EQ(scaled, answer.value("scaled", json()));
      }
      state = answer.value("state", state);
      bits = answer.value("bits", bits);
      ASSERT_EQ(program.state(), state);
      ASSERT_EQ(program.bits(), bits);
    }
  }
  EXPECT_EQ(calls, 2400);
  EXPECT_GT(refused, 0);
}

}  // namespace
}  // namespace torchamp::testing
