#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

#include "common/sharing.h"

namespace poptorch_emu {

// Barrier for the members of a team: none continues before all have arrived. A waiting member
// spins, because barriers are only microseconds apart.
class Meeting {
 public:
  void come(int64_t num_members);

 private:
  std::atomic<int64_t> num_there_ = 0;
  std::atomic<int64_t> num_before_ = 0;  // meetings so far
};

// One of the threads that share a piece of work; by default the only one.
struct Member {
  int64_t index = 0;
  int64_t num_members = 1;
  Meeting* meeting = nullptr;

  // Return begin and end of this member's part of [0, count).
  int64_t begin_of(int64_t count) const { return count * index / num_members; }
  int64_t end_of(int64_t count) const { return count * (index + 1) / num_members; }
  void meet() const {
    if (num_members > 1) meeting->come(num_members);
  }
};

// Calls `run(piece, member)` in parallel for all members of one team for each piece. Returns false
// without a call unless threads share work and each piece can have at least two of them. `run` must
// not throw or call PyTorch's kernels.
bool run_teams(int64_t num_pieces, int64_t most_members,
               const std::function<void(int64_t piece, const Member& member)>& run);

// Runs teams if there are enough threads; otherwise runs each piece on one thread by `share_out`.
template <class Run>
void share_out_to_teams(int64_t num_pieces, int64_t most_members, const Run& run) {
  if (run_teams(num_pieces, most_members, run)) return;
  share_out(num_pieces, 1, [&](int64_t begin, int64_t end) {
    for (int64_t piece = begin; piece < end; ++piece) run(piece, Member{});
  });
}

}  // namespace poptorch_emu
