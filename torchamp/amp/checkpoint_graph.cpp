#include "torchamp/amp/checkpoint_graph.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <unordered_set>

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

namespace torchamp::amp::detail {
namespace {

using torch::autograd::AccumulateGrad;
using torch::autograd::Edge;
using torch::autograd::Node;

const AccumulateGrad* as_leaf(const Node* node) {
  return dynamic_cast<const AccumulateGrad*>(node);
}

// Fills `exit` when the edge leads to a leaf by nothing but casts, at least one, and transposes.
// Such nodes keep no tensor, so they may outlive the graph.
bool is_cast_of_leaf(const Edge& edge, Exit& exit) {
  bool has_cast = false;
  std::string path;
  for (const Node* node = edge.function.get(); node != nullptr;) {
    if (const auto* leaf = as_leaf(node)) {
      if (has_cast) {
        exit.leaf = leaf;
        exit.path = path;
      }
      return has_cast;
    }
    if (node->num_outputs() != 1) {
      return false;
    }
    const auto name = node->name();
    const bool is_cast = name == "ToCopyBackward0";
    if (!is_cast && name != "TBackward0" && name != "TransposeBackward0") {
      return false;
    }
    has_cast |= is_cast;
    path += name + ' ';
    node = node->next_edge(0).function.get();
  }
  return false;
}

}  // namespace

uint64_t next_node() { return at::sequence_number::peek(); }

BuiltGraph::BuiltGraph(const std::vector<at::Tensor>& outputs, uint64_t first_node)
    : first_node_(first_node), thread_(at::RecordFunction::currentThreadId()) {
  entries_.reserve(outputs.size());  // look_at() keeps pointers into it
  std::vector<Node*> pending;
  for (const auto& output : outputs) {
    entries_.push_back(output.defined() && output.requires_grad()
                           ? torch::autograd::impl::gradient_edge(output)
                           : Edge());
    look_at(entries_.back(), pending);
  }
  std::unordered_set<const Node*> seen;
  while (!pending.empty()) {
    Node* node = pending.back();
    pending.pop_back();
    if (seen.insert(node).second) {
      for (auto& edge : node->next_edges()) {
        look_at(edge, pending);
      }
    }
  }
}

bool BuiltGraph::is_inside(const Node& node) const {
  return node.thread_id() == thread_ && node.sequence_nr() >= first_node_;
}

void BuiltGraph::look_at(Edge& edge, std::vector<Node*>& pending) {
  if (!edge.is_valid()) {
    return;
  }
  Exit exit;
  if (const auto* leaf = as_leaf(edge.function.get())) {
    exit.leaf = leaf;
  } else if (!is_cast_of_leaf(edge, exit) && is_inside(*edge.function)) {
    pending.push_back(edge.function.get());
    return;
  }
  auto known = std::find_if(exits_.begin(), exits_.end(),
                            [&edge](const Exit& other) { return other.edge == edge; });
  if (known == exits_.end()) {
    exit.edge = edge;
    exit.dtype = edge.function->input_metadata(edge.input_nr).options().dtype().toScalarType();
    if (exit.leaf != nullptr) {
      exit.version = as_leaf(exit.leaf)->variable._version();
    }
    known = exits_.insert(exits_.end(), std::move(exit));
  }
  leaving_.emplace_back(&edge, static_cast<size_t>(known - exits_.begin()));
}

BuiltGraph::Redirected::Redirected(BuiltGraph& graph, const std::vector<Edge>& targets)
    : graph_(graph) {
  for (auto& [edge, exit] : graph_.leaving_) {
    *edge = targets[exit];
  }
}

BuiltGraph::Redirected::~Redirected() {
  for (auto& [edge, exit] : graph_.leaving_) {
    *edge = graph_.exits_[exit].edge;
  }
}

std::vector<size_t> match_exits(const std::vector<Exit>& now, const std::vector<Exit>& before) {
  const auto way = [](const Exit& exit) { return std::tuple(exit.leaf, exit.path, exit.dtype); };
  std::map<decltype(way(before.front())), std::vector<size_t>> casts;
  for (size_t i = 0; i < before.size(); ++i) {
    if (!before[i].path.empty()) {
      casts[way(before[i])].push_back(i);
    }
  }
  std::map<decltype(way(before.front())), size_t> num_matched;
  std::vector<size_t> matches;
  for (const auto& exit : now) {
    const auto same = std::find_if(before.begin(), before.end(),
                                   [&exit](const Exit& other) { return other.edge == exit.edge; });
    const auto cast = exit.path.empty() ? casts.end() : casts.find(way(exit));
    TORCH_CHECK(same != before.end() || cast != casts.end(),
                "[activation_checkpoint] f uses in backward ",
                exit.leaf != nullptr
                    ? c10::str("a parameter of shape ", as_leaf(exit.leaf)->variable.sizes())
                    : c10::str("a tensor made by ", exit.edge.function->name()),
                " that it did not use in forward; the same parameters and captured tensors are "
                "accepted, on the calling thread. Has a module been replaced, or does f make a "
                "parameter or run threads itself?");
    if (same != before.end()) {
      matches.push_back(static_cast<size_t>(same - before.begin()));
    } else {
      const auto& candidates = cast->second;
      matches.push_back(candidates[std::min(num_matched[way(exit)]++, candidates.size() - 1)]);
    }
  }
  return matches;
}

}  // namespace torchamp::amp::detail
