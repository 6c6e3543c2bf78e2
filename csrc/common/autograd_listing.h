#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace poptorch_emu {

// What autograd would run to differentiate a value.
struct AutogradListing {
  // A line for each node: name, number, and the nodes that its gradients go to.
  std::vector<std::string> lines;
  // Some code of the user takes part (a Python function, a hook): the lines do not say all.
  bool is_opaque = false;
};

// Lists the graph behind `root`, breadth first, the same in every process.
//
// `leaves` are the tensors that may be differentiated by; each is named by its place among them.
// `first_sequence` is subtracted from autograd's numbers, which count everything a thread does.
AutogradListing list_autograd(const at::Tensor& root, const std::vector<at::Tensor>& leaves,
                              int64_t first_sequence);

}  // namespace poptorch_emu
