#include "torchamp/amp/scaled_backward.h"

#include <utility>
#include <vector>

#include <c10/util/Exception.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/graph_task.h>

namespace torchamp::amp::detail {
namespace {

using torch::autograd::Node;

// The engine's own set of the nodes of the backward pass under way on this thread.
const std::unordered_set<Node*>& nodes_of_this_pass() {
  static const std::unordered_set<Node*> none;
  const auto* nodes = torch::autograd::get_current_graph_task_nodes_in_graph();
  return nodes == nullptr ? none : *nodes;
}

// The leaves whose .grad this pass adds to: all of its graph, or those that backward(inputs) named.
std::vector<at::Tensor> leaves_of_this_pass() {
  const auto* wanted = torch::autograd::get_current_graph_task_exec_info();
  std::vector<at::Tensor> leaves;
  for (Node* node : nodes_of_this_pass()) {
    const auto* leaf = dynamic_cast<torch::autograd::AccumulateGrad*>(node);
    if (leaf == nullptr || !leaf->variable.defined()) {
      continue;
    }
    if (wanted != nullptr && !wanted->empty()) {
      const auto found = wanted->find(node);
      if (found == wanted->end() || !found->second.needed_) {
        continue;
      }
    }
    leaves.push_back(leaf->variable);
  }
  return leaves;
}

bool computes_in_float16(const Node& node) {
  for (uint32_t i = 0; i < node.num_inputs(); ++i) {
    if (node.input_metadata(i).dtype() == at::kHalf) {
      return true;
    }
  }
  return false;
}

}  // namespace

void mark_in_backward(const at::Tensor& scaled,
                      const std::shared_ptr<multi_tensor::ScaledMarks>& marks,
                      const at::Tensor& scale) {
  if (!scaled.requires_grad()) {
    return;
  }
  const std::weak_ptr<multi_tensor::ScaledMarks> weak_marks = marks;
  scaled.register_hook([weak_marks, scale](const at::TensorBase&) {
    if (const auto live_marks = weak_marks.lock()) {
      auto leaves = leaves_of_this_pass();
      live_marks->add(leaves, scale);
      // Which gradients these are is known when the pass is over.
      torch::autograd::Engine::get_default_engine().queue_callback(
          [weak_marks, leaves = std::move(leaves)] {
            if (const auto marks_at_end = weak_marks.lock()) {
              marks_at_end->note_gradients(leaves);
            }
          });
    }
  });
}

void warn_of_float16_in_backward(const at::Tensor& loss) {
  if (!loss.requires_grad() || loss.is_leaf()) {  // a leaf would keep the hook for ever
    return;
  }
  loss.register_hook([is_told = std::make_shared<bool>(false)](const at::TensorBase&) {
    for (const Node* node : nodes_of_this_pass()) {
      if (!*is_told && computes_in_float16(*node)) {
        *is_told = true;
        TORCH_WARN(
            "[GradScaler] The scaler is disabled, but backward() computes in float16: gradients "
            "below 6e-8 become 0 there. Make the scaler with enabled = true, or use bf16, whose "
            "range needs no scale.");
        return;
      }
    }
  });
}

}  // namespace torchamp::amp::detail
