#include "common/sharing.h"

#include <unistd.h>
#ifdef _OPENMP
#include <omp.h>
#endif

// MKL has its own thread count, which PyTorch sets if it was built with MKL. Within a parallel
// region MKL would use one thread anyway, but run other code with other bits.
extern "C" int MKL_Set_Num_Threads_Local(int count) __attribute__((weak));

namespace poptorch_emu {
namespace {

const pid_t kLoadedIn = getpid();

thread_local bool is_sharing = true;

void set_openmp_threads(int count) {
#ifdef _OPENMP
  omp_set_num_threads(count);
#endif
}

int set_mkl_threads(int count) {
  return MKL_Set_Num_Threads_Local == nullptr ? 0 : MKL_Set_Num_Threads_Local(count);
}

}  // namespace

IntraOpThreads::IntraOpThreads(int64_t asked) : before_(at::get_num_threads()) {
  const int64_t count = getpid() == kLoadedIn ? asked : 1;
  if (before_ != count) at::set_num_threads(static_cast<int>(count));
}

IntraOpThreads::~IntraOpThreads() {
  if (at::get_num_threads() != before_) at::set_num_threads(before_);
}

Sharing::Sharing(bool is_allowed) : before_(is_sharing) { is_sharing = before_ && is_allowed; }

Sharing::~Sharing() { is_sharing = before_; }

bool shares_work() { return is_sharing; }

void set_shares_work(bool is_allowed) { is_sharing = is_allowed; }

// The thread count is read before it is changed, because a new thread then starts with PyTorch's.
OneThread::OneThread(bool is_asked)
    : is_asked_(is_asked && at::get_num_threads() > 1),
      before_(is_asked_ ? at::get_num_threads() : 1) {
  if (!is_asked_) return;
  set_openmp_threads(1);
  mkl_before_ = set_mkl_threads(1);
}

OneThread::~OneThread() {
  if (!is_asked_) return;
  set_openmp_threads(before_);
  set_mkl_threads(mkl_before_);
}

}  // namespace poptorch_emu
