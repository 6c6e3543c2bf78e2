#pragma once

#include <ATen/Parallel.h>

#include <cstdint>

#include "common/shared_loops.h"

namespace poptorch_emu {

// Gives the current thread a number of threads for one operation, and back what it had. A forked
// child has one: the threads of GNU's OpenMP stay with the parent, and the child would wait for
// them.
class IntraOpThreads {
 public:
  explicit IntraOpThreads(int64_t asked);
  ~IntraOpThreads();
  C10_DISABLE_COPY_AND_ASSIGN(IntraOpThreads);

 private:
  int before_;
};

// Says whether our own operators, called by the current thread, share their work among the threads
// of an operation or with other workers, and afterwards what was said before. Within a scope that
// forbids it, none allows it. No bits depend on it, unlike on the number of threads of PyTorch's
// kernels.
class Sharing {
 public:
  explicit Sharing(bool is_allowed);
  ~Sharing();
  C10_DISABLE_COPY_AND_ASSIGN(Sharing);

 private:
  bool before_;
};

bool shares_work();
void set_shares_work(bool is_allowed);  // of the current thread, for tests

// Has PyTorch's kernels run on the current thread alone, if asked. Unlike `at::set_num_threads`, it
// concerns no other thread.
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

// Calls `run(begin, end)` for parts of [0, count), of `at_least` numbers where there are several:
// on several threads if work is shared, or with other workers that have nothing to do. PyTorch's
// kernels that it calls have one thread, whatever the number of parts.
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
