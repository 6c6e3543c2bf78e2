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

// What waits in a link: a value for each of its registers.
struct Item {
  std::vector<at::Tensor> values;
  // In a sharded link the values are the replica's parts, and these the layouts of the whole ones.
  std::vector<Layout> layouts = {};

  int64_t num_bytes() const;
};

// The most items that a replica ever held in a link, and the most bytes of their values.
struct LinkPeak {
  int64_t items = 0;
  int64_t bytes = 0;
};

// The items of one link on all replicas. A replica sees its own items only, unless the link is
// sharded: then each item is put together from the parts of all replicas, and the parts stay until
// all replicas have done so. Not synchronised.
class LinkQueue {
 public:
  LinkQueue(const Link& link, int64_t num_replicas);

  bool has_item(int64_t replica) const;
  bool has_room(int64_t replica) const;
  void push(int64_t replica, Item item);
  // Returns the next item: one, or of a sharded link the parts of all replicas, by replica.
  std::vector<Item> pop(int64_t replica);
  void clear();

  const LinkPeak& peak() const { return peak_; }

 private:
  Item drop_first(int64_t replica);

  const Link* link_;
  std::vector<std::deque<Item>> items_;  // by replica
  // Of a sharded link: how many of the held items a replica has taken.
  std::vector<int64_t> num_taken_;
  std::vector<int64_t> num_bytes_;  // by replica, of the held items
  LinkPeak peak_;
};

// The two ends of a link on one virtual IPU. Both may copy tensors, so that neither is called with
// a lock.
Item packed(const Link& link, Frame& frame, int64_t replica, int64_t num_replicas,
            RemoteTraffic& remote);
void unpack(const Link& link, std::vector<Item> items, int64_t replica, Frame& frame,
            RemoteTraffic& remote);

}  // namespace poptorch_emu
