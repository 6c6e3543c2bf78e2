#pragma once

#include <cstdint>
#include <vector>

namespace poptorch_emu {

// Chooses from measured times whether a window runs on all cores or on one: its actions on all
// workers or on the first one alone, or our own operators on all threads or on the calling one.
//
// Handing over actions of some ten microseconds may cost more than a second worker gives, and
// threads that share an operation wait for the one whose core has other work. So both ways are
// measured: the other way now and then, the less often the longer the choice has held, but soon
// after windows have become longer than those of the other way were. Not synchronised.
class WorkerChoice {
 public:
  enum class Among { kNothing, kShortActions, kAllActions };

  // With `kNothing` all windows run on all cores; with `kShortActions` those of long actions do.
  explicit WorkerChoice(Among among);

  bool is_alone() const { return is_alone_; }
  // A window took `window_ns` in the way that was chosen, and one of its actions `action_ns` in the
  // mean.
  void note(int64_t window_ns, int64_t action_ns);

 private:
  void note_trial(int64_t window_ns);
  bool is_slower_than_the_other() const;
  int64_t windows_of_trial() const;
  int64_t most_between() const;
  int64_t& typical_ns(bool is_alone) { return typical_ns_[is_alone ? 1 : 0]; }
  int64_t typical_ns(bool is_alone) const { return typical_ns_[is_alone ? 1 : 0]; }
  void begin_phase(bool is_trial, bool is_alone, int64_t num_windows);

  const Among among_;
  bool is_alone_ = false;
  bool is_trial_ = false;  // the other way is being measured
  int64_t num_noted_ = 0;  // windows of this phase so far, and how many it is meant to have
  int64_t num_meant_;
  int64_t num_between_;             // windows between two trials
  int64_t typical_ns_[2] = {0, 0};  // of a window, with all and alone; 0 before the first
  std::vector<int64_t> trial_ns_;   // windows of the second half of this trial
  int64_t trial_so_far_ns_ = 0;
  int64_t much_longer_ns_ = 0;  // the time of windows half as long again as the other way's
};

}  // namespace poptorch_emu
