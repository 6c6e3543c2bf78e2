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

// How far each virtual IPU is in its list of actions, and what its links hold.
//
// A virtual IPU is one IPU of one replica, and runs one action at a time. It is ready for the next
// one when each incoming link has an item and each outgoing one has room; for a part of an update
// when, beyond that, every micro-batch of the window is done and every replica of the IPU has done
// the parts before. Within an action it may wait for a collective, until all replicas have come to
// it. Not synchronised: the scheduler calls it with its lock.
class ActionLists {
 public:
  // `has_micro_batches` says whether actions of micro-batches are run by the lists; otherwise they
  // are left out.
  ActionLists(const Program& program, int64_t num_replicas, bool has_micro_batches);

  void begin_window();
  // Whether each virtual IPU is at the end of its list.
  bool are_done() const { return num_done_ == ipus_.size(); }
  // Drops what is in the links, and actions that have begun, after an error.
  void clear();

  // Each begins an action and returns it, with what its links hold: that of the first virtual IPU
  // that is ready, or the next one of the IPU of this task. Null where there is none.
  Task* begin_any(bool are_micro_batches_done);
  Task* begin_next(const Task& task, bool are_micro_batches_done);
  // The task has come to a collective, to which it gives its part, and waits for its results.
  void suspend(Task& task);
  // The task was done: its links get what it gives.
  void finish(Task& task);

  // Says for what each virtual IPU waits.
  std::string text() const;

  // By link.
  std::vector<LinkPeak> link_peaks() const;

 private:
  struct VirtualIpu {
    Task task;
    size_t position = 0;  // of the task in the list, or of the next one
    bool is_at_work = false;
    CollectiveQueue* awaited = nullptr;  // the collective for which it waits
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
  std::vector<bool> waits_for_replicas_;  // by segment
  std::vector<LinkQueue> queues_;         // by link
  std::map<CollectiveId, CollectiveQueue> collectives_;
  std::vector<VirtualIpu> ipus_;  // by replica, then IPU
  size_t num_done_ = 0;           // virtual IPUs at the end of their lists
};

}  // namespace poptorch_emu
