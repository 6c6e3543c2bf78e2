#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>

namespace poptorch_emu {

// Threads that work together once a run and sleep in between. Worker 0 is the thread that calls
// `run`; the others start with the first run, in a forked child with the child's first.
class ThreadPool {
 public:
  // `work` is called with a worker's number. It must not throw.
  ThreadPool(int64_t num_workers, std::function<void(int64_t)> work);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // Has all workers work, and returns when the last is done.
  void run();

 private:
  class Crew;

  void leave_crew_of_another_process();

  const int64_t num_workers_;
  const std::function<void(int64_t)> work_;
  std::unique_ptr<Crew> crew_;
  pid_t process_ = 0;  // where the crew was started
};

}  // namespace poptorch_emu
