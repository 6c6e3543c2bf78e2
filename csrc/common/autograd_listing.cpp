#include "common/autograd_listing.h"

#include <c10/util/Type.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include <typeinfo>
#include <unordered_map>

namespace poptorch_emu {
namespace {

using torch::autograd::AccumulateGrad;
using torch::autograd::Node;

class Lister {
 public:
  Lister(const std::vector<at::Tensor>& leaves, int64_t first_sequence)
      : first_sequence_(first_sequence) {
    for (size_t i = 0; i < leaves.size(); ++i) leaves_[leaves[i].unsafeGetTensorImpl()] = i;
  }

  AutogradListing run(Node* root) {
    if (root != nullptr) number(root);
    for (size_t next = 0; next < nodes_.size(); ++next) list(*nodes_[next]);
    return std::move(listing_);
  }

 private:
  // Returns the number of a node in the listing; lists a new node later.
  size_t number(Node* node) {
    const auto [found, is_new] = numbers_.try_emplace(node, nodes_.size());
    if (is_new) nodes_.push_back(node);
    return found->second;
  }

  void list(Node& node) {
    std::string line = node.name();
    if (const auto* leaf = dynamic_cast<AccumulateGrad*>(&node)) {
      const auto found = leaves_.find(leaf->variable.unsafeGetTensorImpl());
      line += found == leaves_.end() ? " of no leaf" : " of leaf " + std::to_string(found->second);
    } else {
      line += " " + std::to_string(static_cast<int64_t>(node.sequence_nr()) - first_sequence_);
    }
    for (const auto& edge : node.next_edges()) {
      line += edge.is_valid() ? " -> " + std::to_string(number(edge.function.get())) + "." +
                                    std::to_string(edge.input_nr)
                              : " -> nothing";
    }
    listing_.lines.push_back(std::move(line));
    listing_.is_opaque |= is_python(node) || !node.pre_hooks().empty() ||
                          !node.post_hooks().empty() || !node.tensor_pre_hooks().empty();
  }

  // Compares names, because a header for Python extensions declares the class of these nodes.
  static bool is_python(const Node& node) {
    return c10::demangle(typeid(node).name()) == "torch::autograd::PyNode";
  }

  int64_t first_sequence_;
  std::unordered_map<const c10::TensorImpl*, size_t> leaves_;
  std::unordered_map<const Node*, size_t> numbers_;
  std::vector<Node*> nodes_;
  AutogradListing listing_;
};

}  // namespace

AutogradListing list_autograd(const at::Tensor& root, const std::vector<at::Tensor>& leaves,
                              int64_t first_sequence) {
  return Lister(leaves, first_sequence).run(root.grad_fn().get());
}

}  // namespace poptorch_emu
