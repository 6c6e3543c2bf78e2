#pragma once

#include <mutex>

namespace poptorch_emu {

// Lets another thread of the same core run, or saves power, in a waiting loop.
inline void pause_shortly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// A mutex that is held for less than a microsecond. A thread that finds it locked retries for a
// while before it sleeps, because waking costs both threads about 10 us.
class SpinningMutex {
 public:
  void lock() {
    for (int looks = 0; looks < kLooks; ++looks) {
      if (mutex_.try_lock()) return;
      pause_shortly();
    }
    mutex_.lock();
  }
  bool try_lock() { return mutex_.try_lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  static constexpr int kLooks = 100;  // about 5 us

  std::mutex mutex_;
};

}  // namespace poptorch_emu
