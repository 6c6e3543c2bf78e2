#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>

#include "common/clock.h"
#include "common/spinning_mutex.h"

namespace poptorch_emu {

// How workers wait for each other. Going to sleep and being woken takes some 10 us, and often the
// next change comes sooner; so a worker first looks for a while whether something has changed.
//
// Owns the lock behind which changes are made. What changes without it, and `wait_until` looks at,
// is told by `note`.
class Progress {
 public:
  using Lock = std::unique_lock<SpinningMutex>;

  // Each worker looks for `spin_ns` before it sleeps. With more workers than cores none looks,
  // since the others need its core.
  Progress(int64_t num_workers, int64_t spin_ns)
      : spin_ns_(num_workers <= static_cast<int64_t>(std::thread::hardware_concurrency()) ? spin_ns
                                                                                          : 0) {}

  Lock lock() const { return Lock(mutex_); }

  // With the lock: has waiting workers look again, after something has changed.
  void announce() {
    ++num_changes_;
    if (num_sleeping_ > 0) changed_.notify_all();
  }
  // With the lock, which is let go of meanwhile: waits until something is announced, or shorter; a
  // worker that `wakes_regularly` sleeps a tenth of a second at most. Meanwhile, and without the
  // lock, calls `help` again and again, which does some other work if there is any; a worker that
  // did some waits no longer.
  template <class Help>
  void wait_for_change(Lock& lock, bool wakes_regularly, const Help& help) {
    const uint64_t seen = num_changes_;
    lock.unlock();
    const bool is_to_look = spin_until([&] { return num_changes_ != seen || help(); });
    lock.lock();
    if (!is_to_look && num_changes_ == seen) sleep(lock, wakes_regularly);
  }
  void wait_for_change(Lock& lock) {
    wait_for_change(lock, /*wakes_regularly=*/false, [] { return false; });
  }

  // Has sleeping workers look again.
  void wake_sleepers() {
    const Lock own = lock();
    if (num_sleeping_ > 0) announce();
  }

  // Without the lock: waits until something `holds` that changes without it.
  template <class Holds>
  void wait_until(const Holds& holds) {
    if (spin_until(holds)) return;
    // Counted before it looks again, so that a worker that changes something later sees the count.
    ++num_observers_;
    Lock own = lock();
    while (!holds()) sleep(own, /*wakes_regularly=*/false);
    --num_observers_;
  }
  // Without the lock, after such a change.
  void note() {
    if (num_observers_ == 0) return;
    const Lock own = lock();
    announce();
  }

 private:
  void sleep(Lock& lock, bool wakes_regularly) {
    ++num_sleeping_;
    if (wakes_regularly) {
      changed_.wait_for(lock, std::chrono::milliseconds(100));
    } else {
      changed_.wait(lock);
    }
    --num_sleeping_;
  }

  // Looks for a while whether something holds; returns whether it does.
  template <class Holds>
  bool spin_until(const Holds& holds) const {
    if (holds()) return true;
    if (spin_ns_ == 0) return false;
    const int64_t end_ns = now_ns() + spin_ns_;
    for (int looks = 1; looks % kLooksBetweenClocks != 0 || now_ns() < end_ns; ++looks) {
      pause_shortly();
      if (holds()) return true;
    }
    return false;
  }

  static constexpr int kLooksBetweenClocks = 16;

  mutable SpinningMutex mutex_;
  std::condition_variable_any changed_;
  std::atomic<uint64_t> num_changes_ = 0;
  int64_t num_sleeping_ = 0;
  const int64_t spin_ns_;
  // Read after each action of a micro-batch in flight and seldom written: on a line of the cache of
  // its own.
  alignas(64) std::atomic<int64_t> num_observers_ = 0;
};

}  // namespace poptorch_emu
