#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "program/program.h"
#include "runtime/scheduling/collective_queue.h"
#include "runtime/scheduling/link_queue.h"
#include "runtime/scheduling/task.h"

namespace poptorch_emu {

// Position of each virtual IPU in its list of actions, and the contents of its links.
//
// A virtual IPU is one IPU of one replica, and runs one action at a time. It is ready for the next
// one when each incoming link has an item and each outgoing link has room. A part of an update also
// waits until every micro-batch of the window is done and every replica of the IPU has completed
// the parts before. Within an action, an IPU may wait at a collective for all other replicas. Not
// synchronised: the scheduler calls it while holding its lock.
class ActionLists {
 public:
  // `has_micro_batches` says whether the lists run actions of micro-batches, or skip them.
  ActionLists(const Program& program, int64_t num_replicas, bool has_micro_batches);

  void begin_window();
  // Returns whether each virtual IPU is at the end of its list.
  bool are_done() const { return num_done_ == ipus_.size(); }
  // Drops the contents of links, and actions that have begun, after an error.
  void clear();

  // Begins an action and returns it with the items of its links: that of the first virtual IPU that
  // is ready, or the next one of the IPU of `task`. Returns null if there is none.
  Task* begin_any(bool are_micro_batches_done);
  Task* begin_next(const Task& task, bool are_micro_batches_done);
  // Suspends a task at a collective, to which the task gives its part, until the results are there.
  void suspend(Task& task);
  // Finishes a task and pushes its results to its links.
  void finish(Task& task);

  // Returns a text that says what each virtual IPU waits for.
  std::string text() const;

  // Returns the maximum number of items, and of their bytes, in each link.
  std::vector<LinkPeak> link_peaks() const;

 private:
  struct VirtualIpu {
    Task task;
    size_t position = 0;  // index in the list of the current or next task
    bool is_at_work = false;
    CollectiveQueue* awaited = nullptr;  // the collective at which the IPU waits
  };

  VirtualIpu& ipu_of(const Task& task);
  const std::vector<Action>& list_of(const VirtualIpu& ipu) const {
    return program_.schedule[ipu.task.ipu];
  }
  bool is_at_end(const VirtualIpu& ipu) const { return ipu.position == list_of(ipu).size(); }
  bool is_ready(const VirtualIpu& ipu, bool are_micro_batches_done) const;
  bool have_replicas_arrived(const VirtualIpu& ipu) const;
  bool have_links(int64_t replica, const Segment& segment) const;
  bool takes_part(const VirtualIpu& ipu) const;
  void move_to(VirtualIpu& ipu, size_t position);
  Task& begin(VirtualIpu& ipu);
  Task& resume(VirtualIpu& ipu);
  void give_outputs(Task& task);

  const Program& program_;
  const bool has_micro_batches_;
  std::vector<bool> waits_for_replicas_;  // indexed by segment
  std::vector<LinkQueue> queues_;         // indexed by link
  std::map<CollectiveId, CollectiveQueue> collectives_;
  std::vector<VirtualIpu> ipus_;  // indexed by replica, then IPU
  size_t num_done_ = 0;           // virtual IPUs at the end of their lists
};

}  // namespace poptorch_emu
