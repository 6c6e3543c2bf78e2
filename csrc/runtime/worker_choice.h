#pragma once

#include <cstdint>

namespace poptorch_emu {

// Chooses from measured times whether all workers run a window, or the first one alone.
//
// Where actions take some ten microseconds, handing them over may cost more than a second worker
// gives. Then both ways are measured in turns: the other way now and then, and the less often the
// longer the choice has held. Actions that take longer are always for all. Not synchronised.
class WorkerChoice {
 public:
  // Without a choice, all workers run all windows.
  explicit WorkerChoice(bool has_choice) : has_choice_(has_choice) {}

  bool is_alone() const { return is_alone_; }
  // A window took so long in the way that was chosen, and one of its actions so long in the mean.
  void note(int64_t window_ns, int64_t action_ns);

 private:
  void end_phase(bool has_short_actions);
  int64_t& typical_ns(bool is_alone) { return typical_ns_[is_alone ? 1 : 0]; }

  bool has_choice_;
  bool is_alone_ = false;
  bool is_trial_ = false;           // the other way is being measured
  bool is_first_ = true;            // the next window is the first of its phase, and not measured
  int64_t num_left_ = 3;            // windows of this phase
  int64_t num_between_ = 16;        // windows between two trials
  int64_t typical_ns_[2] = {0, 0};  // of a window, with all and alone; 0 before the first
};

}  // namespace poptorch_emu
