// Every op of the autocast lists, in every kind of region, against Python PyTorch: result dtypes,
// gradient dtypes and error texts (op_table_<version>.json, written by make_op_table.py).

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <ostream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include "support/drop_warnings.h"
#include "support/fingerprint.h"
#include "support/golden.h"
#include "support/op_call.h"
#include "support/recipe.h"
#include "torchamp/amp/autocast.h"

namespace torchamp::testing {
namespace {

using nlohmann::json;

enum class Way { kTorchAmp, kLibTorch };
void PrintTo(Way way, std::ostream* out) {
  *out << (way == Way::kTorchAmp ? "torchamp::Autocast" : "at::autocast by hand");
}

// What torch.autocast does on CPU, with LibTorch's own functions and nothing of ours.
class RawRegion {
 public:
  RawRegion(at::ScalarType dtype, bool enabled)
      : was_enabled_(at::autocast::is_autocast_enabled(at::kCPU)),
        dtype_before_(at::autocast::get_autocast_dtype(at::kCPU)) {
    at::autocast::set_autocast_enabled(at::kCPU, enabled);
    at::autocast::set_autocast_dtype(at::kCPU, dtype);
    at::autocast::increment_nesting();
  }
  ~RawRegion() {
    if (at::autocast::decrement_nesting() == 0) {
      at::autocast::clear_cache();
    }
    at::autocast::set_autocast_enabled(at::kCPU, was_enabled_);
    at::autocast::set_autocast_dtype(at::kCPU, dtype_before_);
  }
  RawRegion(const RawRegion&) = delete;
  RawRegion& operator=(const RawRegion&) = delete;

 private:
  bool was_enabled_;
  at::ScalarType dtype_before_;
};

// "own" and "other" are the region's dtype and the other 16-bit one.
at::ScalarType resolve(const std::string& word, const std::string& own) {
  if (word == "own") {
    return dtype_of(own);
  }
  if (word == "other") {
    return own == "bfloat16" ? at::kHalf : at::kBFloat16;
  }
  return dtype_of(word);
}

class Regions {
 public:
  Regions(Way way, const json& stack, const std::string& own) {
    for (const json& region : stack) {
      const at::ScalarType dtype = resolve(region[0], own);
      const bool enabled = region[1];
      if (way == Way::kTorchAmp) {
        ours_.push_back(std::make_unique<amp::Autocast>(at::kCPU, dtype,
                                                        amp::AutocastOptions{.enabled = enabled}));
      } else {
        raw_.push_back(std::make_unique<RawRegion>(dtype, enabled));
      }
    }
  }
  ~Regions() {
    while (!ours_.empty()) {
      ours_.pop_back();
    }
    while (!raw_.empty()) {
      raw_.pop_back();
    }
  }
  Regions(const Regions&) = delete;
  Regions& operator=(const Regions&) = delete;

 private:
  std::vector<std::unique_ptr<amp::Autocast>> ours_;
  std::vector<std::unique_ptr<RawRegion>> raw_;
};

// One call in one kind of region with one choice of input dtypes.
struct Cell {
  std::string row;
  const json* recipe = nullptr;
  const json* regions = nullptr;
  std::string own;
  std::array<at::ScalarType, 2> inputs = {};
  std::string expected;  // with the errors' texts in place of their numbers
  std::string place;     // for messages
};

struct Outcome {
  std::string text;  // as Cell::expected
  std::vector<at::Tensor> values;
};

Outcome run(const Cell& cell, Way way) {
  const c10::OperatorHandle op = find_op(cell.row);
  OpArguments arguments = op_arguments(op, *cell.recipe, cell.inputs);
  Outcome outcome;
  try {
    const Regions regions(way, *cell.regions, cell.own);
    op.callBoxed(arguments.stack);
  } catch (const std::exception& error) {
    return {"!" + first_line(error), {}};
  }
  std::vector<at::Tensor> roots;
  std::vector<at::Tensor> ones;
  for (const c10::IValue& value : arguments.stack) {
    if (value.isTensor() || value.isNone()) {
      const at::Tensor result = value.isNone() ? at::Tensor() : value.toTensor();
      outcome.text += letter(result);
      if (result.defined() &&
          result.scalar_type() != at::kByte) {  // bytes: oneDNN's scratch memory
        outcome.values.push_back(result.detach());
      }
      if (result.defined() && result.requires_grad()) {
        roots.push_back(result);
        ones.push_back(torch::ones_like(result));
      }
    }
  }
  if (roots.empty()) {
    return outcome;
  }
  outcome.text += '|';
  try {
    torch::autograd::backward(roots, ones);
  } catch (const std::exception& error) {
    outcome.text += "!" + first_line(error);
    return outcome;
  }
  for (const at::Tensor& leaf : arguments.leaves) {
    outcome.text += letter(leaf.grad());
    if (leaf.grad().defined()) {
      outcome.values.push_back(leaf.grad());
    }
  }
  return outcome;
}

constexpr const char* kTable = "op_table_" TORCH_VERSION ".json";

const std::optional<json>& table() {
  static const std::optional<json> parsed = read_golden(kTable);
  return parsed;
}

#define TORCHAMP_NEEDS_TABLE()                                                            \
  if (!table()) {                                                                         \
    GTEST_SKIP() << kTable << " is not there: Python PyTorch of this version writes it: " \
                 << "tests/golden/make_op_table.py FOLDER.";                              \
  }                                                                                       \
  static_assert(true)

std::string with_error_text(const std::string& cell) {
  const size_t mark = cell.find('!');
  return mark == std::string::npos
             ? cell
             : cell.substr(0, mark + 1) +
                   (*table())["errors"].at(std::stoul(cell.substr(mark + 1))).get<std::string>();
}

std::vector<std::string> words(const std::string& text) {
  std::istringstream stream(text);
  return {std::istream_iterator<std::string>(stream), {}};
}

// Pairs of a name and the dtypes of the first floating tensor and of the others.
std::vector<json> choices(const std::string& row, const json& recipe) {
  const auto leaves = op_arguments(find_op(row), recipe, {at::kFloat, at::kFloat}).leaves.size();
  const json& mixtures = (*table())["mixtures"];
  std::vector<json> chosen;
  for (const json& inputs : (*table())["inputs"]) {
    if (leaves > 1 || std::find(mixtures.begin(), mixtures.end(), inputs[0]) == mixtures.end()) {
      chosen.push_back(inputs);
    }
  }
  return chosen;
}

// In the order in which make_op_table.py writes them.
std::vector<Cell> cells() {
  std::vector<Cell> all;
  for (const auto& [row, content] : (*table())["rows"].items()) {
    const std::vector<std::string> expected = words(content["cells"]);
    const std::vector<json> chosen = choices(row, content["args"]);
    size_t next = 0;
    for (const std::string own : (*table())["dtypes"]) {
      for (const json& region : (*table())["regions"]) {
        for (const json& inputs : chosen) {
          all.push_back({row,
                         &content["args"],
                         &region[1],
                         own,
                         {resolve(inputs[1][0], own), resolve(inputs[1][1], own)},
                         next < expected.size() ? with_error_text(expected[next]) : "nothing",
                         row + ", " + own + ", " + region[0].get<std::string>() + ", inputs " +
                             inputs[0].get<std::string>()});
          ++next;
        }
      }
    }
    EXPECT_EQ(next, expected.size()) << row;
  }
  return all;
}

// oneDNN decides by the instruction set which convolutions of mixed dtypes it looks at before they
// are refused, and has no 16-bit LSTM without AVX-512.
bool depends_on_the_machine(const std::string& expected, const std::string& actual) {
  const auto has = [&](const char* part) {
    return expected.find(part) != std::string::npos || actual.find(part) != std::string::npos;
  };
  return (expected[0] == '!' && actual[0] == '!' && has("Input type (CPU")) ||
         has("could not create a primitive descriptor");
}

class OpTable : public ::testing::TestWithParam<Way> {};

TEST_P(OpTable, EveryCellIsPythons) {
  TORCHAMP_NEEDS_TABLE();
  const DropWarnings no_warnings;
  at::set_num_threads(1);
  const std::string machine = fingerprint_difference((*table())["fingerprint"], fingerprint());
  int64_t equal = 0;
  int64_t excused = 0;
  int64_t wrong = 0;
  for (const Cell& cell : cells()) {
    const std::string actual = run(cell, GetParam()).text;
    if (actual == cell.expected) {
      ++equal;
    } else if (!machine.empty() && depends_on_the_machine(cell.expected, actual)) {
      ++excused;
    } else if (++wrong <= 20) {
      ADD_FAILURE() << cell.place << "\n  Python: " << cell.expected << "\n  here:   " << actual;
    }
  }
  EXPECT_EQ(wrong, 0) << "cells that differ from Python's, of which 20 are shown";
  RecordProperty("equal", std::to_string(equal));
  RecordProperty("passed_over", std::to_string(excused) + (excused > 0 ? ": " + machine : ""));
}

INSTANTIATE_TEST_SUITE_P(Through, OpTable, ::testing::Values(Way::kTorchAmp, Way::kLibTorch),
                         [](const auto& info) {
                           return info.param == Way::kTorchAmp ? "TorchAmpsAutocast"
                                                               : "LibTorchsOwnState";
                         });

TEST(OpTableBits, AreTheSameThroughAutocastAndThroughLibTorchsOwnState) {
  TORCHAMP_NEEDS_TABLE();
  const DropWarnings no_warnings;
  at::set_num_threads(1);
  for (const Cell& cell : cells()) {
    const Outcome ours = run(cell, Way::kTorchAmp);
    const Outcome theirs = run(cell, Way::kLibTorch);
    EXPECT_EQ(ours.text, theirs.text) << cell.place;
    // LibTorch 2.11's solution differs in its last bits from call to call, in Python too.
    if (cell.row != "linalg_lstsq") {
      EXPECT_EQ(fnv1a(ours.values), fnv1a(theirs.values)) << cell.place;
    }
  }
}

TEST(OpTableOracle, NoticesAMissingRegion) {
  TORCHAMP_NEEDS_TABLE();
  const DropWarnings no_warnings;
  const json nothing = json::array();
  std::set<std::string> noticed;
  for (Cell cell : cells()) {
    cell.regions = &nothing;
    if (run(cell, Way::kLibTorch).text != cell.expected) {
      noticed.insert(cell.row.substr(0, cell.row.find('/')));
    }
  }
  // prod and view_as_complex and their like: every listed op has a cell that tells.
  for (const std::string op : (*table())["autocast_cpu"]) {
    EXPECT_TRUE(noticed.count(op)) << op;
  }
}

std::set<std::string> registered(c10::DispatchKey key) {
  std::set<std::string> names;
  for (const c10::OperatorName& name :
       c10::Dispatcher::singleton().getRegistrationsForDispatchKey(key)) {
    const std::string aten = "aten::";
    if (name.name.rfind(aten, 0) == 0) {
      names.insert(name.name.substr(aten.size()) +
                   (name.overload_name.empty() ? "" : "." + name.overload_name));
    }
  }
  return names;
}

TEST(OpTableLists, AreThoseOfTheRunningLibTorch) {
  TORCHAMP_NEEDS_TABLE();
  EXPECT_EQ(registered(c10::DispatchKey::AutocastCPU),
            (*table())["autocast_cpu"].get<std::set<std::string>>());
  auto cuda = registered(c10::DispatchKey::AutocastCUDA);
  cuda.insert("_cudnn_rnn");  // libtorch_cuda registers it, where it is loaded
  EXPECT_EQ(cuda, (*table())["autocast_cuda"].get<std::set<std::string>>());
}

TEST(OpTableLists, HaveARowForEveryOp) {
  TORCHAMP_NEEDS_TABLE();
  for (const std::string& op : registered(c10::DispatchKey::AutocastCPU)) {
    EXPECT_TRUE((*table())["rows"].contains(op)) << op;
  }
  for (const std::string& op : registered(c10::DispatchKey::AutocastCUDA)) {
    EXPECT_TRUE((*table())["cuda"].contains(op)) << op;
  }
}

// "conv2d" or "conv_transpose2d, input", as the header's macros hand it over.
std::string listed(std::string arguments) {
  const size_t comma = arguments.find(", ");
  return comma == std::string::npos ? arguments : arguments.replace(comma, 2, ".");
}

TEST(OpTableCuda, RulesAreThoseOfTheHeader) {
  TORCHAMP_NEEDS_TABLE();
  std::map<std::string, std::string> header;
#define TORCHAMP_RULE(...) header[listed(#__VA_ARGS__)] = rule;
  std::string rule = "lower_precision_fp";
  AT_FORALL_LOWER_PRECISION_FP(TORCHAMP_RULE)
  rule = "fp32";
  AT_FORALL_FP32(TORCHAMP_RULE)
  rule = "fp32_set_opt_dtype";
  AT_FORALL_FP32_SET_OPT_DTYPE(TORCHAMP_RULE)
  rule = "promote";
  AT_FORALL_PROMOTE(TORCHAMP_RULE)
#undef TORCHAMP_RULE
#define TORCHAMP_RULE(FUNCTION, NAME, ...) header[NAME] = "fp32_append_dtype";
  AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(TORCHAMP_RULE)
#undef TORCHAMP_RULE
  // Registered by LibTorch outside of the header's lists.
  header["binary_cross_entropy"] = "banned";
  header["_cudnn_rnn"] = header["cudnn_convolution"] = header["cudnn_convolution_transpose"] =
      "lower_precision_fp";
  if (has_op("linalg_matrix_sqrth")) {
    header["linalg_matrix_sqrth"] = "fp32";
  }
  std::map<std::string, std::string> recorded;
  for (const auto& [op, content] : (*table())["cuda"].items()) {
    recorded[op] = content["rule"];
  }
  EXPECT_EQ(recorded, header);
}

TEST(OpTableCuda, ResultsFollowTheRules) {
  TORCHAMP_NEEDS_TABLE();
  if (!torch::cuda::is_available()) {
    GTEST_SKIP() << "There is no CUDA device, or this build has no CUDA (TORCHAMP_CUDA=ON).";
  }
  const DropWarnings no_warnings;
  for (const auto& [name, content] : (*table())["cuda"].items()) {
    const c10::OperatorHandle op = find_op(name);
    const bool banned = content["rule"] == "banned";
    const json& recipe =
        content.contains("args") ? content["args"] : (*table())["rows"][name]["args"];
    const std::vector<std::string> expected = words(content.value("cells", ""));
    size_t next = 0;
    for (const std::string own : (*table())["dtypes"]) {
      for (const json& inputs : choices(name, recipe)) {
        const std::string wanted = next < expected.size() ? expected[next] : "";
        ++next;
        OpArguments arguments = op_arguments(
            op, recipe, {resolve(inputs[1][0], own), resolve(inputs[1][1], own)}, at::kCUDA);
        const std::string place = name + ", " + own + ", inputs " + inputs[0].get<std::string>();
        std::string actual;
        try {
          const amp::Autocast region(at::kCUDA, dtype_of(own));
          op.callBoxed(arguments.stack);
          for (const c10::IValue& value : arguments.stack) {
            actual += value.isTensor() ? std::string(1, letter(value.toTensor())) : "";
          }
        } catch (const std::exception& error) {
          actual = "!" + first_line(error);
        }
        if (banned) {
          EXPECT_NE(actual.find("are unsafe to autocast"), std::string::npos) << place << actual;
        } else if (content.contains("first") && inputs[0] == "float32") {
          EXPECT_EQ(actual.substr(0, 1), own.substr(0, 1) == "b" ? "b" : "h") << place << actual;
        } else if (!content.contains("first")) {
          EXPECT_EQ(wanted == "!" ? actual.substr(0, 1) : actual, wanted) << place << actual;
        }
      }
    }
  }
}

}  // namespace
}  // namespace torchamp::testing
