#include "runtime/scheduling/worker_choice.h"

#include <algorithm>

namespace poptorch_emu {
namespace {

// Minimum length of an action for which a second worker always saves time.
constexpr int64_t kLongActionNs = 150'000;
// Duration of a trial; the next two numbers limit its windows. A trial ends early if windows that
// take 1.5 times as long as those of the other way add up to this duration.
constexpr int64_t kTrialNs = 3'000'000;
constexpr int64_t kFewestTried = 3;
constexpr int64_t kMostTried = 8;
// A trial of all workers has at least 1 / kShareTried of the windows between trials: a core
// that has slept may be slow until a virtual machine's host assigns a free one.
constexpr int64_t kShareTried = 16;
// Number of windows before the first trial, because the first windows take longer.
constexpr int64_t kFirstWindows = 16;
constexpr int64_t kFewBetween = 16;
constexpr int64_t kMostBetween = 4096;
// Maximum time between trials, because other work on the computer comes and goes sooner.
constexpr int64_t kMostBetweenNs = 2'000'000'000;
// Typical windows that differ by less than 1 / kMargin count as equally fast.
constexpr int64_t kMargin = 8;
constexpr int64_t kFewest = 4;

}  // namespace

WorkerChoice::WorkerChoice(Among among)
    : among_(among), num_meant_(kFirstWindows), num_between_(kFewBetween) {}

void WorkerChoice::note(int64_t window_ns, int64_t action_ns) {
  if (among_ == Among::kNothing) return;
  ++num_noted_;
  if (is_trial_) {
    note_trial(window_ns);
    return;
  }
  // Typical times follow shorter windows immediately, because other work only makes windows longer.
  int64_t& typical = typical_ns(is_alone_);
  const bool is_shorter = typical == 0 || window_ns < typical;
  if (num_noted_ > 1) typical = is_shorter ? window_ns : typical + (window_ns - typical) / 8;
  if (num_noted_ < num_meant_ && !is_slower_than_the_other()) return;
  if (among_ == Among::kAllActions || action_ns < kLongActionNs || is_alone_) {
    typical_ns(!is_alone_) = 0;
    begin_phase(/*is_trial=*/true, !is_alone_, windows_of_trial());
  } else {
    begin_phase(/*is_trial=*/false, is_alone_, num_between_);
  }
}

// The first half of a trial's windows is a warm-up and does not count. The median of the others
// counts, because other processes can make single windows short or long.
void WorkerChoice::note_trial(int64_t window_ns) {
  if (num_noted_ > num_meant_ / 2) trial_ns_.push_back(window_ns);
  trial_so_far_ns_ += window_ns;
  const int64_t other_ns = typical_ns(!is_alone_);
  if (window_ns > other_ns + other_ns / 2) much_longer_ns_ += window_ns;
  const bool is_hopeless = much_longer_ns_ > kTrialNs + trial_so_far_ns_ / 4;
  if (num_noted_ < num_meant_ && !is_hopeless) return;
  if (trial_ns_.empty()) trial_ns_.push_back(window_ns);
  const auto middle = trial_ns_.begin() + static_cast<int64_t>(trial_ns_.size() / 2);
  std::nth_element(trial_ns_.begin(), middle, trial_ns_.end());
  typical_ns(is_alone_) = *middle;
  const bool is_kept = !is_hopeless && *middle < other_ns;
  num_between_ = is_kept ? kFewBetween : std::min(4 * num_between_, most_between());
  begin_phase(/*is_trial=*/false, is_kept ? is_alone_ : !is_alone_, num_between_);
}

bool WorkerChoice::is_slower_than_the_other() const {
  const int64_t other_ns = typical_ns(!is_alone_);
  return num_noted_ >= kFewest && other_ns > 0 &&
         typical_ns(is_alone_) > other_ns + other_ns / kMargin;
}

int64_t WorkerChoice::windows_of_trial() const {
  const int64_t window_ns = std::max<int64_t>(typical_ns(is_alone_), 1);
  const int64_t fewest = std::clamp(kTrialNs / window_ns, kFewestTried, kMostTried);
  return is_alone_ ? std::max(fewest, num_between_ / kShareTried) : fewest;
}

int64_t WorkerChoice::most_between() const {
  const int64_t window_ns = std::max<int64_t>(typical_ns(!is_alone_), 1);
  return std::clamp(kMostBetweenNs / window_ns, kFewBetween, kMostBetween);
}

void WorkerChoice::begin_phase(bool is_trial, bool is_alone, int64_t num_windows) {
  is_trial_ = is_trial;
  is_alone_ = is_alone;
  num_noted_ = 0;
  trial_ns_.clear();
  much_longer_ns_ = 0;
  trial_so_far_ns_ = 0;
  num_meant_ = num_windows;
}

}  // namespace poptorch_emu
