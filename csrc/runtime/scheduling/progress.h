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

// Waiting of workers for each other. Sleeping and waking take about 10 us, and the next change
// often comes sooner. A worker therefore spins for a while before it sleeps.
//
// This class owns the lock for changes. Changes without the lock, which `wait_until` looks for, are
// reported by `note`.
class Progress {
 public:
  using Lock = std::unique_lock<SpinningMutex>;

  // Each worker spins for `spin_ns` before it sleeps. With more workers than cores none spins,
  // because other workers need the core.
  Progress(int64_t num_workers, int64_t spin_ns)
      : spin_ns_(num_workers <= static_cast<int64_t>(std::thread::hardware_concurrency()) ? spin_ns
                                                                                          : 0) {}

  Lock lock() const { return Lock(mutex_); }

  // Called with the lock: makes waiting workers look again after a change.
  void announce() {
    ++num_changes_;
    if (num_sleeping_ > 0) changed_.notify_all();
  }
  // Called with the lock, which is released meanwhile: waits for an announcement. A worker that
  // `wakes_regularly` sleeps for at most a tenth of a second. Meanwhile the worker repeatedly calls
  // `help` without the lock, which does other work if there is any. A worker that did some work
  // stops waiting.
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

  // Makes sleeping workers look again.
  void wake_sleepers() {
    const Lock own = lock();
    if (num_sleeping_ > 0) announce();
  }

  // Called without the lock: waits until `holds` returns true after a change without the lock.
  template <class Holds>
  void wait_until(const Holds& holds) {
    if (spin_until(holds)) return;
    // Increased before the worker looks again, so that a worker with a later change sees the count.
    ++num_observers_;
    Lock own = lock();
    while (!holds()) sleep(own, /*wakes_regularly=*/false);
    --num_observers_;
  }
  // Reports a change for which `wait_until` may wait; called without the lock.
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

  // Spins for a while; returns whether the condition holds.
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
  // Number of workers in `wait_until`. It is read after each action of a micro-batch in flight and
  // rarely written, so that it has its own cache line.
  alignas(64) std::atomic<int64_t> num_observers_ = 0;
};

}  // namespace poptorch_emu
