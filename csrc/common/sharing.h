#pragma once

#include <ATen/Parallel.h>

#include <cstdint>

#include "common/shared_loops.h"

namespace poptorch_emu {

// Sets the number of threads of one operation for the current thread, and restores it afterwards. A
// forked child uses one thread, because the threads of GNU's OpenMP stay in the parent process and
// the child would wait for them.
class IntraOpThreads {
 public:
  explicit IntraOpThreads(int64_t asked);
  ~IntraOpThreads();
  C10_DISABLE_COPY_AND_ASSIGN(IntraOpThreads);

 private:
  int before_;
};

// Allows or forbids our own operators on the current thread to share work among threads or with
// other workers, and restores the earlier setting at the end. Within a scope that forbids sharing,
// no inner scope allows it. Sharing changes no bit, unlike the thread count of PyTorch's kernels.
class Sharing {
 public:
  explicit Sharing(bool is_allowed);
  ~Sharing();
  C10_DISABLE_COPY_AND_ASSIGN(Sharing);

 private:
  bool before_;
};

bool shares_work();
void set_shares_work(bool is_allowed);  // for the current thread; used by tests

// Runs PyTorch's kernels on the current thread alone, if asked. Unlike `at::set_num_threads`, it
// affects no other thread.
class OneThread {
 public:
  explicit OneThread(bool is_asked);
  ~OneThread();
  C10_DISABLE_COPY_AND_ASSIGN(OneThread);

 private:
  const bool is_asked_;
  const int before_;
  int mkl_before_ = 0;
};

// Calls `run(begin, end)` for parts of [0, count), each with at least `at_least` numbers, on
// several threads if work is shared, or with other idle workers. PyTorch's kernels in `run` use one
// thread, whatever the number of parts.
template <class Run>
void share_out(int64_t count, int64_t at_least, const Run& run) {
  const auto run_part = [&](int64_t begin, int64_t end) {
    const OneThread one(true);
    run(begin, end);
  };
  SharedLoops* const loops = SharedLoops::of_thread();
  if (!shares_work()) {
    run_part(0, count);
  } else if (loops != nullptr && at::get_num_threads() == 1) {
    loops->run(count, at_least, run_part);
  } else {
    at::parallel_for(0, count, at_least, run_part);
  }
}

}  // namespace poptorch_emu
