#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <vector>

namespace poptorch_emu {

// One collective: what each replica gave to it and has still to get. A replica that has given its
// part waits for those of the others, so that it may be one micro-batch ahead of them. Not
// synchronised.
class CollectiveQueue {
 public:
  // `is_relayed` says whether the network's row takes the parts and gives what replicas get; else
  // they get the parts themselves, as soon as all are there.
  CollectiveQueue(int64_t num_replicas, bool is_relayed);

  void push(int64_t replica, at::Tensor part);
  // Whether each replica has given a part that was not taken, and these parts, by replica.
  bool has_parts() const;
  std::vector<at::Tensor> take_parts();
  void give(const std::vector<at::Tensor>& results);

  bool has_results(int64_t replica) const { return !results_[replica].empty(); }
  std::vector<at::Tensor> pop(int64_t replica);
  void clear();

 private:
  bool is_relayed_;
  // By replica, what it gave, and what it is to get, in the order of micro-batches.
  std::vector<std::deque<at::Tensor>> parts_;
  std::vector<std::deque<std::vector<at::Tensor>>> results_;
};

}  // namespace poptorch_emu
