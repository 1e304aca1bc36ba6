#pragma once
// The part of an autograd graph that one function built, and the edges by which it leaves to what
// was there before. Internal: activation_checkpoint.cpp is its user.

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>

namespace torchamp::amp::detail {

/// An edge out of the graph: to a leaf, to a node that is older than the function's run, or to the
/// cast of a leaf, which autocast may have kept from before and may hand to others afterwards.
struct Exit {
  torch::autograd::Edge edge;
  const torch::autograd::Node* leaf = nullptr;  // where the edge leads to one, perhaps by a cast
  std::string path;                             // of the cast: names of its nodes, from the top
  at::ScalarType dtype = at::kFloat;
  uint32_t version = 0;  // of the leaf's tensor
};

/// What a function built on this thread since `first_node`, seen from its outputs.
class BuiltGraph {
 public:
  /// Undefined outputs and those without a history have no part in it.
  BuiltGraph(const std::vector<at::Tensor>& outputs, uint64_t first_node);

  const std::vector<Exit>& exits() const { return exits_; }
  /// The edge from which backward enters at that output.
  const torch::autograd::Edge& entry(size_t output) const { return entries_[output]; }

  /// While it lives, the exits lead to `targets` (one for each), and so do entries that are exits.
  class Redirected {
   public:
    Redirected(BuiltGraph& graph, const std::vector<torch::autograd::Edge>& targets);
    ~Redirected();
    Redirected(const Redirected&) = delete;
    Redirected& operator=(const Redirected&) = delete;
    Redirected(Redirected&&) = delete;
    Redirected& operator=(Redirected&&) = delete;

   private:
    BuiltGraph& graph_;
  };

 private:
  bool is_inside(const torch::autograd::Node& node) const;
  void look_at(torch::autograd::Edge& edge, std::vector<torch::autograd::Node*>& pending);

  uint64_t first_node_;
  uint64_t thread_;
  std::vector<torch::autograd::Edge> entries_;
  std::vector<Exit> exits_;
  std::vector<std::pair<torch::autograd::Edge*, size_t>> leaving_;  // in a node's list; its exit
};

/// For each of `now` the exit of `before` that is the same: the same node, else the k-th cast of
/// the same leaf in the same way. c10::Error when there is none.
std::vector<size_t> match_exits(const std::vector<Exit>& now, const std::vector<Exit>& before);

/// The number of the next autograd node that this thread will make.
uint64_t next_node();

}  // namespace torchamp::amp::detail
