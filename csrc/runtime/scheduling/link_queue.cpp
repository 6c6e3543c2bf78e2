#include "runtime/scheduling/link_queue.h"

#include <algorithm>
#include <utility>

namespace poptorch_emu {
namespace {

Item packed_parts(const Link& link, Frame& frame, int64_t replica, int64_t num_replicas,
                  RemoteTraffic& remote) {
  Item item;
  for (RegisterId source : link.producer_registers) {
    const at::Tensor dense = dense_copy_unless_dense(frame[source]);
    const at::Tensor part = shard_of(in_memory_order(dense), replica, num_replicas);
    item.layouts.push_back(layout_of(dense));
    item.values.push_back(link.is_remote ? remote.store(part) : part.clone());
  }
  return item;
}

void unpack_parts(const Link& link, std::vector<Item>& items, int64_t replica, Frame& frame,
                  RemoteTraffic& remote) {
  for (size_t i = 0; i < link.consumer_registers.size(); ++i) {
    std::vector<at::Tensor> parts;
    for (const Item& item : items) parts.push_back(item.values[i]);
    // Each replica loads its own part from streaming memory; the other parts come from other chips.
    if (link.is_remote) parts[replica] = remote.load(parts[replica]);
    frame[link.consumer_registers[i]] = laid_out(parts, items[replica].layouts[i]);
  }
}

}  // namespace

int64_t Item::num_bytes() const {
  int64_t bytes = 0;
  for (const at::Tensor& value : values) bytes += static_cast<int64_t>(value.nbytes());
  return bytes;
}

LinkQueue::LinkQueue(const Link& link, int64_t num_replicas)
    : link_(&link),
      items_(num_replicas),
      num_taken_(num_replicas, 0),
      num_bytes_(num_replicas, 0) {}

bool LinkQueue::has_item(int64_t replica) const {
  if (!link_->is_sharded) return !items_[replica].empty();
  return std::all_of(items_.begin(), items_.end(), [&](const std::deque<Item>& items) {
    return static_cast<int64_t>(items.size()) > num_taken_[replica];
  });
}

bool LinkQueue::has_room(int64_t replica) const {
  return static_cast<int64_t>(items_[replica].size()) < link_->capacity;
}

void LinkQueue::push(int64_t replica, Item item) {
  num_bytes_[replica] += item.num_bytes();
  peak_.bytes = std::max(peak_.bytes, num_bytes_[replica]);
  items_[replica].push_back(std::move(item));
  peak_.items = std::max(peak_.items, static_cast<int64_t>(items_[replica].size()));
}

std::vector<Item> LinkQueue::pop(int64_t replica) {
  std::vector<Item> taken;
  if (!link_->is_sharded) {
    taken.push_back(drop_first(replica));
    return taken;
  }
  for (const std::deque<Item>& items : items_) taken.push_back(items[num_taken_[replica]]);
  ++num_taken_[replica];
  if (*std::min_element(num_taken_.begin(), num_taken_.end()) > 0) {
    for (int64_t& count : num_taken_) --count;
    for (size_t holder = 0; holder < items_.size(); ++holder) drop_first(holder);
  }
  return taken;
}

Item LinkQueue::drop_first(int64_t replica) {
  Item item = std::move(items_[replica].front());
  items_[replica].pop_front();
  num_bytes_[replica] -= item.num_bytes();
  return item;
}

void LinkQueue::clear() {
  for (std::deque<Item>& items : items_) items.clear();
  std::fill(num_taken_.begin(), num_taken_.end(), 0);
  std::fill(num_bytes_.begin(), num_bytes_.end(), 0);
}

Item packed(const Link& link, Frame& frame, int64_t replica, int64_t num_replicas,
            RemoteTraffic& remote) {
  if (link.is_sharded) return packed_parts(link, frame, replica, num_replicas, remote);
  Item item;
  for (RegisterId source : link.producer_registers) {
    item.values.push_back(link.is_remote ? remote.store(frame[source]) : frame[source]);
  }
  return item;
}

void unpack(const Link& link, std::vector<Item> items, int64_t replica, Frame& frame,
            RemoteTraffic& remote) {
  if (link.is_sharded) {
    unpack_parts(link, items, replica, frame, remote);
    return;
  }
  std::vector<at::Tensor>& values = items.front().values;
  for (size_t i = 0; i < values.size(); ++i) {
    at::Tensor& target = frame[link.consumer_registers[i]];
    target = link.is_remote ? remote.load(values[i]) : std::move(values[i]);
  }
}

}  // namespace poptorch_emu
