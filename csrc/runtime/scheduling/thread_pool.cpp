#include "runtime/scheduling/thread_pool.h"

#include <unistd.h>

#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "common/errors.h"
#include "runtime/scheduling/progress.h"

namespace poptorch_emu {

namespace {

// Time for which idle threads spin. In a loop that only calls the model, Python needs less time
// between two calls.
constexpr int64_t kSpinBetweenCallsNs = 250'000;

}  // namespace

// The threads of one process, with the means to wake them.
class ThreadPool::Threads {
 public:
  Threads(int64_t num_threads, const std::function<void(int64_t)>& work)
      : work_(work), progress_(num_threads + 1, kSpinBetweenCallsNs) {
    try {
      for (int64_t worker = 1; worker <= num_threads; ++worker) {
        threads_.emplace_back([this, worker] { serve(worker); });
      }
    } catch (const std::system_error& error) {
      close();
      throw Error("Only " + std::to_string(threads_.size()) + " of " + std::to_string(num_threads) +
                  " threads beside the calling one could be started (" + error.what() +
                  "). Ask for fewer workers, or let the process have more memory or threads.");
    }
  }

  ~Threads() { close(); }

  void begin() {
    const Progress::Lock lock = progress_.lock();
    ++generation_;
    num_busy_ = threads_.size();
    progress_.announce();
  }

  void await() {
    Progress::Lock lock = progress_.lock();
    while (num_busy_ > 0) progress_.wait_for_change(lock);
  }

 private:
  void close() {
    {
      const Progress::Lock lock = progress_.lock();
      is_closing_ = true;
      progress_.announce();
    }
    for (std::thread& thread : threads_) thread.join();
  }

  void serve(int64_t worker) {
    int64_t seen = 0;
    while (true) {
      {
        Progress::Lock lock = progress_.lock();
        while (!is_closing_ && generation_ == seen) progress_.wait_for_change(lock);
        if (is_closing_) return;
        seen = generation_;
      }
      work_(worker);
      const Progress::Lock lock = progress_.lock();
      if (--num_busy_ == 0) progress_.announce();
    }
  }

  const std::function<void(int64_t)>& work_;
  Progress progress_;
  int64_t generation_ = 0;
  size_t num_busy_ = 0;
  bool is_closing_ = false;
  std::vector<std::thread> threads_;  // last, because they use the other members
};

ThreadPool::ThreadPool(int64_t num_workers, std::function<void(int64_t)> work)
    : num_workers_(num_workers), work_(std::move(work)) {}

ThreadPool::~ThreadPool() { leave_threads_of_another_process(); }

void ThreadPool::run(bool is_alone) {
  has_called_ = false;
  if (!is_alone) call_others();
  work_(0);
  if (has_called_) others_->await();
}

void ThreadPool::call_others() {
  if (has_called_ || num_workers_ == 1) return;
  leave_threads_of_another_process();
  if (!others_) {
    others_ = std::make_unique<Threads>(num_workers_ - 1, work_);
    process_ = getpid();
  }
  others_->begin();
  has_called_ = true;
}

// Abandons threads of the parent process in a forked child, which has these objects but no such
// threads. Joining them, or destroying what they slept on, would wait forever. For example, a data
// loader's worker does this when it collects a model as garbage.
void ThreadPool::leave_threads_of_another_process() {
  if (others_ && process_ != getpid()) static_cast<void>(others_.release());
}

}  // namespace poptorch_emu
