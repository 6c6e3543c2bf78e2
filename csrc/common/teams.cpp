#include "common/teams.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "common/spinning_mutex.h"
#ifdef _OPENMP
#include <omp.h>
#endif

namespace poptorch_emu {

void Meeting::come(int64_t num_members) {
  constexpr int kLooksBeforeYielding = 1000;
  const int64_t this_one = num_before_.load(std::memory_order_relaxed);
  if (num_there_.fetch_add(1, std::memory_order_acq_rel) + 1 == num_members) {
    num_there_.store(0, std::memory_order_relaxed);
    num_before_.store(this_one + 1, std::memory_order_release);
    return;
  }
  for (int looks = 0; num_before_.load(std::memory_order_acquire) == this_one; ++looks) {
    looks < kLooksBeforeYielding ? pause_shortly() : std::this_thread::yield();
  }
}

// Members wait for each other, so that all must run at once. The parallel region therefore asks
// OpenMP for the actual number of threads.
bool run_teams([[maybe_unused]] int64_t num_pieces, [[maybe_unused]] int64_t most_members,
               [[maybe_unused]] const std::function<void(int64_t, const Member&)>& run) {
#ifdef _OPENMP
  if (!shares_work() || most_members < 2 || num_pieces < 1 || at::in_parallel_region() ||
      at::get_num_threads() < 2 * num_pieces) {
    return false;
  }
  std::vector<Meeting> meetings(num_pieces);
#pragma omp parallel
  {
    const int64_t num_threads = omp_get_num_threads(), thread = omp_get_thread_num();
    const int64_t num_members = std::clamp<int64_t>(num_threads / num_pieces, 1, most_members);
    const int64_t num_teams = num_threads / num_members;
    for (int64_t piece = thread / num_members; piece < num_pieces; piece += num_teams)
      run(piece, {thread % num_members, num_members, &meetings[piece]});
  }
  return true;
#else
  return false;
#endif
}

}  // namespace poptorch_emu
