#include "torchamp/amp/activation_checkpoint.h"

#include <mutex>
#include <optional>
#include <utility>

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/Exception.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

#include "torchamp/amp/autocast.h"
#include "torchamp/amp/checkpoint_graph.h"

namespace torchamp::amp::detail {
namespace {

using torch::autograd::AccumulateGrad;
using torch::autograd::Edge;
using torch::autograd::Node;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

using NodePointer = decltype(Edge::function);  // shared up to LibTorch 2.14, intrusive since

template <typename T, typename... Args>
auto make_node(Args&&... args) {
  if constexpr (std::is_same_v<NodePointer, std::shared_ptr<Node>>) {
    // LibTorch's own deleter, found by its argument, frees long chains without recursion.
    return std::shared_ptr<T>(new T(std::forward<Args>(args)...),
                              [](auto* node) { deleteNode(node); });
  } else {
    return c10::make_intrusive<T>(std::forward<Args>(args)...);
  }
}

struct GeneratorState {
  at::Generator generator;
  at::Tensor state;
};

at::Tensor state_of(at::Generator& generator) {
  const std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.get_state();
}

void set_state(GeneratorState& saved) {
  const std::lock_guard<std::mutex> lock(saved.generator.mutex());
  saved.generator.set_state(saved.state);
}

// The default generators of the CPU and of every CUDA device that this process has touched.
std::vector<GeneratorState> generator_states() {
  std::vector<GeneratorState> states;
  const auto add = [&states](at::Device device) {
    auto generator = at::globalContext().defaultGenerator(device);
    states.push_back({generator, state_of(generator)});
  };
  add(at::kCPU);
  if (at::hasCUDA()) {
    const auto& hooks = at::detail::getCUDAHooks();
    for (size_t i = 0; i < at::getNumGPUs(); ++i) {
      const auto index = static_cast<c10::DeviceIndex>(i);
      if (hooks.hasPrimaryContext(index)) {
        add(at::Device(at::kCUDA, index));
      }
    }
  }
  return states;
}

// Gives generators earlier states; puts back at the end what they have now.
class GeneratorStateGuard {
 public:
  explicit GeneratorStateGuard(std::vector<GeneratorState>& states) {
    for (auto& earlier : states) {
      present_.push_back({earlier.generator, state_of(earlier.generator)});
      set_state(earlier);
    }
  }
  ~GeneratorStateGuard() {
    for (auto& present : present_) {
      set_state(present);
    }
  }
  GeneratorStateGuard(const GeneratorStateGuard&) = delete;
  GeneratorStateGuard& operator=(const GeneratorStateGuard&) = delete;
  GeneratorStateGuard(GeneratorStateGuard&&) = delete;
  GeneratorStateGuard& operator=(GeneratorStateGuard&&) = delete;

 private:
  std::vector<GeneratorState> present_;
};

// What an output was in forward.
struct OutputFacts {
  explicit OutputFacts(const at::Tensor& output)
      : is_defined(output.defined()), requires_grad(is_defined && output.requires_grad()) {
    if (is_defined) {
      sizes = output.sizes().vec();
      dtype = output.scalar_type();
      device = output.device();
    }
  }
  std::string describe() const {
    return is_defined ? c10::str(dtype, " of shape ", c10::IntArrayRef(sizes), " on ", device,
                                 requires_grad ? "" : " without a gradient")
                      : "undefined";
  }
  bool operator==(const OutputFacts&) const = default;

  bool is_defined;
  bool requires_grad;
  std::vector<int64_t> sizes;
  at::ScalarType dtype = at::kFloat;
  at::Device device = at::kCPU;
};

// Where the exits of the recomputed graph are led: the engine stops here and hands over what comes.
struct Sink : Node {
  explicit Sink(const std::vector<Exit>& exits) {
    for (const auto& exit : exits) {
      input_metadata_.emplace_back(exit.edge.function->input_metadata(exit.edge.input_nr));
    }
  }
  variable_list apply(variable_list&& /*gradients*/) override { return {}; }
};

struct Recipe {
  AutocastState autocast;
  std::vector<GeneratorState> generators;
  std::vector<OutputFacts> outputs;
  std::vector<Exit> exits;
  CheckpointFunction function;
};

// Stands in for the graph of f. Its next edges are the exits of that graph.
struct ActivationCheckpoint : Node {
  ActivationCheckpoint(Recipe recipe, const std::vector<at::Tensor>& inputs)
      : recipe_(std::move(recipe)) {
    for (const auto& input : inputs) {
      inputs_.emplace_back(input, /*is_output=*/false);
    }
    for (const auto& exit : recipe_.exits) {
      add_next_edge(exit.edge);
    }
  }

  std::string name() const override { return "torchamp::amp::ActivationCheckpoint"; }

  void release_variables() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    inputs_.clear();
    recipe_.function = nullptr;
  }

  variable_list apply(variable_list&& gradients) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    TORCH_CHECK(recipe_.function != nullptr,
                "[activation_checkpoint] Trying to backward through a checkpoint a second time; "
                "its inputs were freed by the first. Call the first backward() with "
                "retain_graph=true.");
    const bool creates_graph = c10::GradMode::is_enabled();
    check_parameters();
    const auto first_node = next_node();
    const auto outputs = run_again();
    check_outputs(outputs);
    BuiltGraph graph(outputs, first_node);
    const auto matches = match_exits(graph.exits(), recipe_.exits);

    // The gradients that someone waits for are what the engine is asked for.
    const auto sink = make_node<Sink>(recipe_.exits);
    std::vector<Edge> wanted;
    std::vector<size_t> wanted_exits;
    for (size_t i = 0; i < recipe_.exits.size(); ++i) {
      if (task_should_compute_output(i)) {
        wanted.emplace_back(sink, static_cast<uint32_t>(i));
        wanted_exits.push_back(i);
      }
    }
    std::vector<Edge> targets;
    targets.reserve(matches.size());
    for (const auto match : matches) {
      targets.emplace_back(sink, static_cast<uint32_t>(match));
    }
    const BuiltGraph::Redirected redirected(graph, targets);
    std::vector<Edge> roots;
    variable_list root_gradients;
    size_t slot = 0;
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (recipe_.outputs[i].requires_grad) {
        auto& gradient = gradients[slot++];
        if (gradient.defined()) {
          roots.push_back(graph.entry(i));
          root_gradients.push_back(std::move(gradient));
        }
      }
    }
    variable_list results(recipe_.exits.size());
    if (!roots.empty() && !wanted.empty()) {
      auto captured = torch::autograd::Engine::get_default_engine().execute(
          roots, root_gradients, /*keep_graph=*/creates_graph, /*create_graph=*/creates_graph,
          /*accumulate_grad=*/false, wanted);
      for (size_t i = 0; i < wanted_exits.size(); ++i) {
        results[wanted_exits[i]] = std::move(captured[i]);
      }
    }
    return results;
  }

 private:
  std::vector<at::Tensor> run_again() {
    std::vector<at::Tensor> inputs;
    inputs.reserve(inputs_.size());
    for (const auto& input : inputs_) {
      inputs.push_back(input.unpack());
    }
    const c10::AutoGradMode grad_mode(true);
    const AutocastStateGuard autocast(recipe_.autocast);
    const GeneratorStateGuard generators(recipe_.generators);
    return recipe_.function(inputs);
  }

  void check_parameters() const {
    for (const auto& exit : recipe_.exits) {
      if (exit.leaf != nullptr) {
        const auto& leaf = static_cast<const AccumulateGrad*>(exit.leaf)->variable;
        TORCH_CHECK(leaf._version() == exit.version,
                    "[activation_checkpoint] A parameter of shape ", leaf.sizes(),
                    " that f uses was changed in place between forward and backward (version ",
                    exit.version, ", now ", leaf._version(),
                    "); f would compute something else. Call backward() before the optimizer's "
                    "step().");
      }
    }
  }

  void check_outputs(const std::vector<at::Tensor>& outputs) const {
    TORCH_CHECK(outputs.size() == recipe_.outputs.size(), "[activation_checkpoint] f gives ",
                outputs.size(), " tensors in backward and gave ", recipe_.outputs.size(),
                " in forward; it must do the same both times. Does it depend on something that "
                "has changed?");
    for (size_t i = 0; i < outputs.size(); ++i) {
      const OutputFacts facts(outputs[i]);
      TORCH_CHECK(facts == recipe_.outputs[i], "[activation_checkpoint] Output ", i, " of f is ",
                  facts.describe(), " in backward and was ", recipe_.outputs[i].describe(),
                  " in forward; it must be the same both times. Does f depend on something that "
                  "has changed?");
    }
  }

  Recipe recipe_;
  std::vector<SavedVariable> inputs_;
};

bool shares_memory(const at::Tensor& output, const std::vector<at::Tensor>& inputs) {
  for (const auto& input : inputs) {
    if (input.defined() && input.has_storage() && output.has_storage() &&
        output.is_alias_of(input)) {
      return true;
    }
  }
  return false;
}

}  // namespace

struct CheckpointRecorder::Record {
  std::vector<at::Tensor> inputs;
  std::vector<std::optional<int64_t>> versions;  // none for a tensor that has none
  AutocastState autocast = AutocastState::capture();
  std::vector<GeneratorState> generators = generator_states();
  uint64_t first_node = next_node();
};

CheckpointRecorder::CheckpointRecorder(std::vector<at::Tensor> inputs)
    : record_(std::make_unique<Record>()) {
  for (size_t i = 0; i < inputs.size(); ++i) {
    const auto& input = inputs[i];
    TORCH_CHECK(!input.defined() || !input._fw_grad(/*level=*/0).defined(),
                "[activation_checkpoint] Input tensor ", i,
                " carries a tangent of forward-mode differentiation; only backward() is "
                "supported. Run f itself.");
    record_->versions.push_back(input.defined() && !input.is_inference()
                                    ? std::optional<int64_t>(input._version())
                                    : std::nullopt);
  }
  record_->inputs = std::move(inputs);
}

CheckpointRecorder::~CheckpointRecorder() = default;

void CheckpointRecorder::finish(std::vector<at::Tensor>& outputs, CheckpointFunction function) {
  for (size_t i = 0; i < record_->inputs.size(); ++i) {
    TORCH_CHECK(
        !record_->versions[i].has_value() || record_->inputs[i]._version() == *record_->versions[i],
        "[activation_checkpoint] f changed its input tensor ", i,
        " in place, so that it cannot run again on it; a function that leaves its inputs "
        "as they are is accepted. Use clone() or an op without '_'.");
  }
  Recipe recipe;
  bool requires_grad = false;
  for (const auto& output : outputs) {
    recipe.outputs.emplace_back(output);
    requires_grad |= recipe.outputs.back().requires_grad;
  }
  if (!requires_grad) {
    return;
  }
  const BuiltGraph graph(outputs, record_->first_node);
  recipe.autocast = std::move(record_->autocast);
  recipe.generators = std::move(record_->generators);
  recipe.exits = graph.exits();
  recipe.function = std::move(function);
  const auto is_older = [&](size_t output) {
    for (const auto& exit : graph.exits()) {
      if (exit.edge == graph.entry(output)) {
        return true;
      }
    }
    return false;
  };
  std::vector<at::Tensor> detached = outputs;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (recipe.outputs[i].requires_grad) {
      detached[i] = is_older(i) || shares_memory(outputs[i], record_->inputs)
                        ? outputs[i].detach().clone()
                        : outputs[i].variable_data();
    }
  }
  const auto facts = recipe.outputs;
  const auto node = make_node<ActivationCheckpoint>(std::move(recipe), record_->inputs);
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (facts[i].requires_grad) {
      torch::autograd::set_history(detached[i], node);
    }
  }
  outputs = std::move(detached);
}

}  // namespace torchamp::amp::detail
