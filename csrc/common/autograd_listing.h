#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace poptorch_emu {

// A listing of the nodes that autograd would run to differentiate a value.
struct AutogradListing {
  // One line for each node, with its name, its number and the nodes that receive its gradients.
  std::vector<std::string> lines;
  // Whether user code takes part (a Python function or a hook), which the lines do not show.
  bool is_opaque = false;
};

// Lists the autograd graph of `root` breadth first, in the same order in every process.
//
// `leaves` are the tensors with respect to which autograd may differentiate; each is named by its
// index. `first_sequence` is subtracted from autograd's sequence numbers, which count all
// operations of a thread.
AutogradListing list_autograd(const at::Tensor& root, const std::vector<at::Tensor>& leaves,
                              int64_t first_sequence);

}  // namespace poptorch_emu
