#pragma once

#include <cstdint>
#include <vector>

namespace poptorch_emu {

// Chooses from measured times whether a window runs on all cores or on one core. The choice
// concerns its actions (all workers or the first one), or our own operators (all threads or one).
//
// Handing over actions of about ten microseconds may cost more time than a second worker saves.
// Threads that share an operation wait for the slowest one, for example if its core has other work.
// Both ways are therefore measured. The other way is tried less often the longer a choice has held,
// but soon after windows have become longer than those of the other way. Not synchronised.
class WorkerChoice {
 public:
  enum class Among { kNothing, kShortActions, kAllActions };

  // With `kNothing` all windows use all cores; with `kShortActions` windows of long actions do.
  explicit WorkerChoice(Among among);

  bool is_alone() const { return is_alone_; }
  // Records the duration of a window in the chosen way, and the mean duration of its actions.
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
  bool is_trial_ = false;  // whether the other way is being measured
  int64_t num_noted_ = 0;  // windows of this phase so far, and their planned number
  int64_t num_meant_;
  int64_t num_between_;             // windows between two trials
  int64_t typical_ns_[2] = {0, 0};  // typical window of all workers, and of one; 0: unknown
  std::vector<int64_t> trial_ns_;   // window times in the second half of this trial
  int64_t trial_so_far_ns_ = 0;
  int64_t much_longer_ns_ = 0;  // total time of windows 1.5 times as long as the other way's
};

}  // namespace poptorch_emu
