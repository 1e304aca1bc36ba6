#include "torchamp/amp/script_module.h"

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include <ATen/core/interned_strings.h>
#include <ATen/core/jit_type.h>
#include <ATen/core/symbol.h>
#include <c10/util/Exception.h>
#include <torch/csrc/jit/api/function_impl.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/ir/constants.h>
#include <torch/csrc/jit/ir/ir.h>
#include <torch/csrc/jit/runtime/graph_executor.h>

namespace torchamp::amp {
namespace {

using torch::jit::Block;
using torch::jit::Graph;
using torch::jit::GraphFunction;
using torch::jit::Node;

// The number of spatial dimensions: the length of the list of strides.
std::optional<size_t> num_dims(const torch::jit::Value* strides) {
  if (strides->node()->kind() == c10::prim::ListConstruct) {
    return strides->node()->inputs().size();
  }
  const auto constant = torch::jit::toIValue(strides);
  return constant.has_value() && constant->isIntList()
             ? std::optional<size_t>(constant->toIntVector().size())
             : std::nullopt;
}

// A trace names every convolution aten::_convolution(input, weight, bias, stride, padding,
// dilation, transposed, output_padding, groups, and four flags). This gives it back the name and
// the arguments that the module called; one whose kind is no constant stays.
void restore_convolution(Node* node) {
  const auto inputs = node->inputs();
  if (inputs.size() != 13) {
    return;
  }
  const auto transposed = torch::jit::toIValue(inputs[6]);
  const auto dims = num_dims(inputs[3]);
  if (!transposed.has_value() || !dims.has_value() || *dims < 1 || *dims > 3) {
    return;
  }
  std::vector<torch::jit::Value*> arguments{inputs[0], inputs[1], inputs[2], inputs[3], inputs[4]};
  if (transposed->toBool()) {
    arguments.insert(arguments.end(), {inputs[7], inputs[8], inputs[5]});
  } else {
    arguments.insert(arguments.end(), {inputs[5], inputs[8]});
  }
  const auto name = std::string(transposed->toBool() ? "aten::conv_transpose" : "aten::conv") +
                    std::to_string(*dims) + "d";
  Node* plain = node->owningGraph()->create(c10::Symbol::fromQualString(name), arguments);
  plain->copyMetadata(node);
  plain->insertBefore(node);
  plain->output()->copyMetadata(node->output());
  node->output()->replaceAllUsesWith(plain->output());
}

bool is_autocast(const torch::jit::Value* value) {
  const auto type = value->type()->cast<c10::ClassType>();
  return type != nullptr && type->name().has_value() &&
         type->name()->qualifiedName().find("autocast_mode.autocast") != std::string::npos;
}

// Visits the functions that a module's methods reach, each once.
class Preparation {
 public:
  void prepare(torch::jit::Function& function) {
    auto* graph_function = torch::jit::tryToGraphFunction(function);
    if (graph_function == nullptr || !seen_.insert(graph_function).second) {
      return;
    }
    graph_function->ensure_defined();
    graph_function->_set_ignore_amp(true);
    graph_function->_set_initial_executor_execution_mode(torch::jit::ExecutorExecutionMode::SIMPLE);
    visit(graph_function->graph()->block(), graph_function->qualname().qualifiedName());
  }

 private:
  void visit(Block* block, const std::string& method) {
    for (auto it = block->nodes().begin(); it != block->nodes().end();) {
      Node* node = *it++;
      for (Block* inner : node->blocks()) {
        visit(inner, method);
      }
      TORCH_CHECK(node->kind() != c10::prim::Enter || !is_autocast(node->input(0)),
                  "[script_for_autocast] The method ", method,
                  " enters torch.autocast itself, which only LibTorch's script compiler can read; "
                  "a module without is accepted. Take the 'with' out of the Python code and put an "
                  "Autocast around the call.");
      if (node->kind() == c10::prim::CallFunction) {
        if (const auto type = node->input(0)->type()->cast<c10::FunctionType>()) {
          prepare(*type->function());
        }
      } else if (node->kind() == kConvolution) {
        const bool is_last_use = node->outputs().size() == 1;
        restore_convolution(node);
        if (is_last_use && node->output()->uses().empty()) {
          node->destroy();
        }
      }
    }
  }

  const c10::Symbol kConvolution = c10::Symbol::fromQualString("aten::_convolution");
  std::unordered_set<const GraphFunction*> seen_;
};

}  // namespace

torch::jit::Module script_for_autocast(const torch::jit::Module& module) {
  // A clone has methods of its own, of which nothing is compiled yet; "in place" shares tensors.
  auto prepared = module.clone(/*inplace=*/true);
  Preparation preparation;
  for (const auto& part : prepared.modules()) {
    for (auto* method : part.type()->methods()) {
      preparation.prepare(*method);
    }
  }
  return prepared;
}

}  // namespace torchamp::amp
