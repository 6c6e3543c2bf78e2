#pragma once

#include <vector>

#include "program/program.h"

namespace poptorch_emu {

// Says when a window segment, such as the update of an IPU's weights, may begin.
//
// Once every micro-batch has left the segments that use the same variables and sums, or get views
// of these variables over links, an update can begin, while micro-batches are still under way in
// others. But an update may overwrite weights in their place, which cannot be taken back. So it
// also waits for all segments in which an operation could fail with the values that it gets; what
// is left then are gradients of operations that are through, the rows of an embedding among them if
// they were looked up. In an executor's first window it waits for all, since memory is planned
// then.
//
// Not synchronised: the scheduler calls it with its lock.
class EarlyWindows {
 public:
  explicit EarlyWindows(const Program& program);

  // Whether some window segment waits for fewer than all segments of micro-batches.
  bool are_any() const { return are_any_; }

  // Begins a window; `expect` follows once for each time that `leave` will be called in it.
  void begin_window();
  void expect(SegmentId id) { ++num_left_[id.value]; }
  // From now on windows need not wait for all.
  void note_complete_window() { is_planned_ = true; }
  // A segment has been left by a micro-batch, or by all of a replica.
  void leave(SegmentId id) { --num_left_[id.value]; }
  bool may_begin(SegmentId window) const;
  // Something begins, and whether that was a window segment for any in this window: weights may
  // have been changed, which only the end of the window makes complete.
  void note_begin(SegmentId id) { have_begun_ |= is_window_[id.value]; }
  bool have_begun() const { return have_begun_; }

 private:
  std::vector<std::vector<SegmentId>> needs_;  // by segment; of window segments only
  std::vector<bool> is_window_;                // by segment
  bool are_any_ = false;
  bool have_begun_ = false;
  bool is_planned_ = false;        // a window was complete
  std::vector<int64_t> num_left_;  // by segment
};

}  // namespace poptorch_emu
