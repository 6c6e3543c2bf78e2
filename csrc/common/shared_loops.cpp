#include "common/shared_loops.h"

#include <algorithm>
#include <exception>
#include <mutex>
#include <thread>

#include "common/spinning_mutex.h"

namespace poptorch_emu {
namespace {

// Minimum number of parts for waking workers, because a part and a wake-up each take about 10 us.
constexpr int64_t kPartsWorthWaking = 8;
constexpr int kLooksBeforeYielding = 1000;

thread_local SharedLoops* loops_of_thread = nullptr;
// Whether this thread runs a part. A helper that offered a loop within it would wait for itself.
thread_local bool is_in_part = false;

}  // namespace

struct SharedLoops::Loop {
  const int64_t count;
  const int64_t per_part;
  const Part part;
  std::atomic<int64_t> next = 0;
  std::mutex mutex = {};
  std::exception_ptr error = nullptr;

  // Runs parts of the loop until none is left; returns whether it ran any.
  bool work() {
    for (bool has_worked = false;; has_worked = true) {
      const int64_t begin = next.fetch_add(per_part);
      if (begin >= count) return has_worked;
      is_in_part = true;
      try {
        part(begin, std::min(begin + per_part, count));
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!error) error = std::current_exception();
        next = count;
      }
      is_in_part = false;
    }
  }
};

void SharedLoops::run(int64_t count, int64_t per_part, Part part) {
  Loop loop{count, per_part, part};
  Loop* none = nullptr;
  if (is_in_part || count <= per_part || !offered_.compare_exchange_strong(none, &loop)) {
    part(0, count);
    return;
  }
  if (count >= kPartsWorthWaking * per_part) wake_();
  loop.work();
  offered_ = nullptr;
  for (int looks = 0; num_helpers_ > 0; ++looks) {
    looks < kLooksBeforeYielding ? pause_shortly() : std::this_thread::yield();
  }
  if (loop.error) std::rethrow_exception(loop.error);
}

// A helper counts itself first. `run` withdraws its loop and then waits for all counted helpers.
bool SharedLoops::help() {
  if (offered_.load(std::memory_order_relaxed) == nullptr) return false;
  ++num_helpers_;
  Loop* const loop = offered_;
  const bool has_worked = loop != nullptr && loop->work();
  --num_helpers_;
  return has_worked;
}

SharedLoops* SharedLoops::of_thread() { return loops_of_thread; }

SharedLoops::Member::Member(SharedLoops& loops) { loops_of_thread = &loops; }
SharedLoops::Member::~Member() { loops_of_thread = nullptr; }

}  // namespace poptorch_emu
