#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>

namespace poptorch_emu {

// Threads that work together in runs; between two runs they look for the next one for a while, then
// they sleep. Worker 0 is the thread that calls `run`; the others start when they are first called,
// in a forked child when they are called there.
class ThreadPool {
 public:
  // `work` is called with a worker's number. It must not throw.
  ThreadPool(int64_t num_workers, std::function<void(int64_t)> work);
  ~ThreadPool();

  // Has all workers work, or worker 0 until it calls the others, and returns when the last is done.
  // Throws `Error` where a thread cannot be started; no worker works then.
  void run(bool is_alone);
  // By worker 0, whenever it wants the others in this run.
  void call_others();

 private:
  class Threads;

  void leave_threads_of_another_process();

  const int64_t num_workers_;
  const std::function<void(int64_t)> work_;
  std::unique_ptr<Threads> others_;
  pid_t process_ = 0;        // where they were started
  bool has_called_ = false;  // the others, in this run
};

}  // namespace poptorch_emu
