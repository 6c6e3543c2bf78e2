#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>

namespace poptorch_emu {

// Threads that work together in runs. Between runs they spin for a while and then sleep. Worker 0
// is the thread that calls `run`. The others start at their first call, also in a forked child.
class ThreadPool {
 public:
  // `work` is called with a worker's index. It must not throw.
  ThreadPool(int64_t num_workers, std::function<void(int64_t)> work);
  ~ThreadPool();

  // Runs all workers, or worker 0 alone until it calls the others, and returns when the last is
  // done. Throws `Error` if a thread cannot be started; in that case no worker runs.
  void run(bool is_alone);
  // Called by worker 0 when it needs the others in this run.
  void call_others();

 private:
  class Threads;

  void leave_threads_of_another_process();

  const int64_t num_workers_;
  const std::function<void(int64_t)> work_;
  std::unique_ptr<Threads> others_;
  pid_t process_ = 0;        // the process that started the threads
  bool has_called_ = false;  // whether the others were called in this run
};

}  // namespace poptorch_emu
