#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <vector>

namespace poptorch_emu {

// One collective, with the parts that replicas gave and the results that they have not read. A
// replica waits after its part, so that it is at most one micro-batch ahead. Not synchronised.
class CollectiveQueue {
 public:
  // `is_relayed` says whether the network's row reads the parts and supplies the results. Otherwise
  // the replicas receive the parts themselves, as soon as all are there.
  CollectiveQueue(int64_t num_replicas, bool is_relayed);

  void push(int64_t replica, at::Tensor part);
  // Return whether each replica has given a part that is not taken yet, and these parts.
  bool has_parts() const;
  std::vector<at::Tensor> take_parts();
  void give(const std::vector<at::Tensor>& results);

  bool has_results(int64_t replica) const { return !results_[replica].empty(); }
  std::vector<at::Tensor> pop(int64_t replica);
  void clear();

 private:
  bool is_relayed_;
  // Parts that each replica gave, and results that it has not read, in the order of micro-batches.
  std::vector<std::deque<at::Tensor>> parts_;
  std::vector<std::deque<std::vector<at::Tensor>>> results_;
};

}  // namespace poptorch_emu
