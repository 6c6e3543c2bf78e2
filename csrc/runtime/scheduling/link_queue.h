#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <vector>

#include "program/program.h"
#include "runtime/executor/frame.h"
#include "runtime/memory/remote_traffic.h"
#include "runtime/memory/shards.h"

namespace poptorch_emu {

// An item that waits in a link: one value for each of the link's registers.
struct Item {
  std::vector<at::Tensor> values;
  // Layouts of whole values in a sharded link, where `values` holds only the replica's parts.
  std::vector<Layout> layouts = {};

  int64_t num_bytes() const;
};

// Maximum number of items that a replica held in a link, and maximum size of their values.
struct LinkPeak {
  int64_t items = 0;
  int64_t bytes = 0;
};

// The items of one link on all replicas. A replica reads its own items only. In a sharded link each
// item is assembled from the parts of all replicas, and the parts stay until all replicas have read
// them. Not synchronised.
class LinkQueue {
 public:
  LinkQueue(const Link& link, int64_t num_replicas);

  bool has_item(int64_t replica) const;
  bool has_room(int64_t replica) const;
  void push(int64_t replica, Item item);
  // Returns the next item; for a sharded link, the parts of all replicas in order.
  std::vector<Item> pop(int64_t replica);
  void clear();

  const LinkPeak& peak() const { return peak_; }

 private:
  Item drop_first(int64_t replica);

  const Link* link_;
  std::vector<std::deque<Item>> items_;  // indexed by replica
  // For a sharded link: how many of the current items each replica has read.
  std::vector<int64_t> num_taken_;
  std::vector<int64_t> num_bytes_;  // bytes of the current items, by replica
  LinkPeak peak_;
};

// Pack and unpack the items of a link on one virtual IPU. Both functions may copy tensors, so that
// they are called without a lock.
Item packed(const Link& link, Frame& frame, int64_t replica, int64_t num_replicas,
            RemoteTraffic& remote);
void unpack(const Link& link, std::vector<Item> items, int64_t replica, Frame& frame,
            RemoteTraffic& remote);

}  // namespace poptorch_emu
