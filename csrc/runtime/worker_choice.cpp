#include "runtime/worker_choice.h"

#include <algorithm>

namespace poptorch_emu {
namespace {

// Actions of 60 us gained or lost a tenth by a second worker; those of 400 us gained.
constexpr int64_t kLongActionNs = 150'000;
constexpr int64_t kTrialWindows = 3;
constexpr int64_t kFewBetween = 16;
constexpr int64_t kMostBetween = 1024;

}  // namespace

void WorkerChoice::note(int64_t window_ns, int64_t action_ns) {
  if (!has_choice_) return;
  if (!is_first_) {
    // Other work on this computer makes a window longer, never shorter.
    int64_t& typical = typical_ns(is_alone_);
    const bool is_shorter = typical == 0 || window_ns < typical;
    typical = is_shorter ? window_ns : typical + (window_ns - typical) / 8;
  }
  is_first_ = false;
  if (--num_left_ <= 0) end_phase(action_ns < kLongActionNs);
}

void WorkerChoice::end_phase(bool has_short_actions) {
  const bool was_alone = is_alone_;
  if (is_trial_) {
    const bool is_kept = typical_ns(is_alone_) < typical_ns(!is_alone_);
    if (!is_kept) is_alone_ = !is_alone_;
    num_between_ = is_kept ? kFewBetween : std::min(2 * num_between_, kMostBetween);
    is_trial_ = false;
  } else {
    is_trial_ = has_short_actions || is_alone_;
    if (is_trial_) is_alone_ = !is_alone_;
  }
  is_first_ = is_alone_ != was_alone;
  num_left_ = is_trial_ ? kTrialWindows : num_between_;
}

}  // namespace poptorch_emu
