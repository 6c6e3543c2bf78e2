#pragma once

#include <cstdint>
#include <deque>
#include <mutex>
#include <vector>

namespace poptorch_emu {

// One executed action, for profiles. Times are of the steady clock.
struct Event {
  int64_t replica;
  int64_t ipu;
  int64_t segment;
  int64_t window;
  int64_t micro_batch;
  int64_t worker;
  int64_t start_ns;
  int64_t end_ns;
};

// The actions that ran since the log was started, up to a bound. Half of the bound is for the first
// calls and half for the last ones, all of them complete. Calls between are only counted. Of a call
// with more events than half the bound, the log keeps the first ones.
//
// Owns the events and a lock.
class EventLog {
 public:
  // Assumed to be what a viewer opens: a trace of so many events is a file of some 40 MB.
  static constexpr int64_t kMaxEvents = 200'000;

  // By the thread that runs a call, between calls.
  void start(int64_t max_events);
  void stop() { is_on_ = false; }
  void begin_call();

  // By any worker.
  bool is_on() const { return is_on_; }
  void add(const Event& event);

  // The number of events that `take` will not return.
  int64_t num_dropped() const;
  // Returns the events, in the order of calls and then in the order in which they ended, and
  // forgets them.
  std::vector<Event> take();

 private:
  void drop_oldest_of_last();

  bool is_on_ = false;
  mutable std::mutex mutex_;
  int64_t max_events_of_a_half_ = kMaxEvents / 2;
  std::vector<Event> first_;  // of the first calls that fit into their half
  bool is_first_full_ = false;
  std::deque<std::vector<Event>> last_;  // by call; has the other half together with `call_`
  int64_t num_last_ = 0;                 // events in `last_`
  std::vector<Event> call_;              // of the present call
  int64_t num_dropped_ = 0;
};

}  // namespace poptorch_emu
