#include "runtime/scheduling/collective_queue.h"

#include <algorithm>
#include <utility>

namespace poptorch_emu {

CollectiveQueue::CollectiveQueue(int64_t num_replicas, bool is_relayed)
    : is_relayed_(is_relayed), parts_(num_replicas), results_(num_replicas) {}

void CollectiveQueue::push(int64_t replica, at::Tensor part) {
  parts_[replica].push_back(std::move(part));
  if (!is_relayed_ && has_parts()) give(take_parts());
}

bool CollectiveQueue::has_parts() const {
  return std::none_of(parts_.begin(), parts_.end(),
                      [](const std::deque<at::Tensor>& parts) { return parts.empty(); });
}

std::vector<at::Tensor> CollectiveQueue::take_parts() {
  std::vector<at::Tensor> taken;
  for (std::deque<at::Tensor>& parts : parts_) {
    taken.push_back(std::move(parts.front()));
    parts.pop_front();
  }
  return taken;
}

void CollectiveQueue::give(const std::vector<at::Tensor>& results) {
  for (auto& of_replica : results_) of_replica.push_back(results);
}

std::vector<at::Tensor> CollectiveQueue::pop(int64_t replica) {
  std::vector<at::Tensor> result = std::move(results_[replica].front());
  results_[replica].pop_front();
  return result;
}

void CollectiveQueue::clear() {
  for (auto& parts : parts_) parts.clear();
  for (auto& results : results_) results.clear();
}

}  // namespace poptorch_emu
