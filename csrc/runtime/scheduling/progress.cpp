#include "runtime/scheduling/progress.h"

#include <chrono>

namespace poptorch_emu {

void Progress::sleep(Lock& lock, bool wakes_regularly) {
  ++num_sleeping_;
  if (wakes_regularly) {
    changed_.wait_for(lock, std::chrono::milliseconds(100));
  } else {
    changed_.wait(lock);
  }
  --num_sleeping_;
}

}  // namespace poptorch_emu
