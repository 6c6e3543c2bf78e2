#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>

#include "common/clock.h"
#include "common/spinning_mutex.h"

namespace poptorch_emu {

// How workers wait for each other: each looks for a while whether something has come, since going
// to sleep and being woken takes some 10 us and often the next change comes sooner; then it sleeps.
//
// Owns the lock behind which what they wait for changes. What is changed without it, and looked at
// by `wait_until`, is said by `note`.
class Progress {
 public:
  using Lock = std::unique_lock<SpinningMutex>;

  // Each looks for `spin_ns` before it sleeps. With more workers than cores nobody looks; the
  // others need the core.
  Progress(int64_t num_workers, int64_t spin_ns)
      : spin_ns_(num_workers <= static_cast<int64_t>(std::thread::hardware_concurrency()) ? spin_ns
                                                                                          : 0) {}

  Lock lock() const { return Lock(mutex_); }

  // With the lock: has waiting workers look again, after something has changed.
  void announce() {
    ++num_changes_;
    if (num_sleeping_ > 0) changed_.notify_all();
  }
  // With the lock, which is let go of meanwhile: waits until something is announced, or perhaps not
  // as long. Who looks up does so ten times a second. Meanwhile, and without the lock, asks again
  // and again whether there is something to `help` with; who has helped waits no longer.
  template <class Help>
  void wait_for_change(Lock& lock, bool looks_up, const Help& help) {
    const uint64_t seen = num_changes_;
    lock.unlock();
    const bool is_to_look = spin_until([&] { return num_changes_ != seen || help(); });
    lock.lock();
    if (!is_to_look && num_changes_ == seen) sleep(lock, looks_up);
  }
  void wait_for_change(Lock& lock) {
    wait_for_change(lock, /*looks_up=*/false, [] { return false; });
  }

  // Has those look again that sleep.
  void wake_sleepers() {
    const Lock own = lock();
    if (num_sleeping_ > 0) announce();
  }

  // Without the lock: waits until something `holds` that changes without it.
  template <class Holds>
  void wait_until(const Holds& holds) {
    if (spin_until(holds)) return;
    // Before it looks again: whoever changes something afterwards sees that it is looked for.
    ++num_observers_;
    Lock own = lock();
    while (!holds()) sleep(own, /*looks_up=*/false);
    --num_observers_;
  }
  // Without the lock, after such a change.
  void note() {
    if (num_observers_ == 0) return;
    const Lock own = lock();
    announce();
  }

 private:
  void sleep(Lock& lock, bool looks_up);

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
  // Read after each step of a walk, and seldom written: on a line of the cache of its own.
  alignas(64) std::atomic<int64_t> num_observers_ = 0;
};

}  // namespace poptorch_emu
