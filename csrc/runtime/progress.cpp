#include "runtime/progress.h"

#include <chrono>

namespace poptorch_emu {

void Progress::wait_for_change(Lock& lock, bool looks_up) {
  const uint64_t seen = num_changes_;
  lock.unlock();
  spin_until([&] { return num_changes_ != seen; });
  lock.lock();
  if (num_changes_ == seen) sleep(lock, looks_up);
}

void Progress::sleep(Lock& lock, bool looks_up) {
  ++num_sleeping_;
  if (looks_up) {
    changed_.wait_for(lock, std::chrono::milliseconds(100));
  } else {
    changed_.wait(lock);
  }
  --num_sleeping_;
}

}  // namespace poptorch_emu
