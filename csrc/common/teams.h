#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

#include "common/sharing.h"

namespace poptorch_emu {

// Where the members of a team meet: none goes on before all have come. A member that waits
// spins, since there are microseconds between two meetings.
class Meeting {
 public:
  void come(int64_t num_members);

 private:
  std::atomic<int64_t> num_there_ = 0;
  std::atomic<int64_t> num_before_ = 0;  // meetings
};

// One of the threads that share a piece of work, or the only one.
struct Member {
  int64_t index = 0;
  int64_t num_members = 1;
  Meeting* meeting = nullptr;

  // Where its part of [0, count) begins and ends.
  int64_t begin_of(int64_t count) const { return count * index / num_members; }
  int64_t end_of(int64_t count) const { return count * (index + 1) / num_members; }
  void meet() const {
    if (num_members > 1) meeting->come(num_members);
  }
};

// Calls `run(piece, member)` for all members of a team at once, and for the teams of all pieces, if
// threads share work and there are at least two for each piece. False, and nothing is called, where
// that is not so. `run` must not throw, nor call PyTorch's kernels.
bool run_teams(int64_t num_pieces, int64_t most_members,
               const std::function<void(int64_t piece, const Member& member)>& run);

// The same, by `share_out` where there are fewer threads.
template <class Run>
void share_out_to_teams(int64_t num_pieces, int64_t most_members, const Run& run) {
  if (run_teams(num_pieces, most_members, run)) return;
  share_out(num_pieces, 1, [&](int64_t begin, int64_t end) {
    for (int64_t piece = begin; piece < end; ++piece) run(piece, Member{});
  });
}

}  // namespace poptorch_emu
