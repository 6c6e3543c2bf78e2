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

// What ran since somebody asked, within a bound: of a long run the first calls and the last ones
// are kept whole, and those between are counted. Of a call that is longer than half the bound, the
// beginning is kept.
//
// Owns the events, behind a lock of its own.
class EventLog {
 public:
  // Assumed to be what a viewer opens: a trace of so many is a file of some 40 MB.
  static constexpr int64_t kMaxEvents = 200'000;

  // Between calls.
  void start(int64_t max_events);
  void stop() { is_on_ = false; }
  void begin_call();

  // By any worker.
  bool is_on() const { return is_on_; }
  void add(const Event& event);

  // How many events `take` won't return.
  int64_t num_dropped() const;
  // Returns the events since the last time, by call and then in the order in which they ended, and
  // begins anew.
  std::vector<Event> take();

 private:
  void drop_oldest_of_last();

  bool is_on_ = false;
  mutable std::mutex mutex_;
  int64_t max_events_of_a_half_ = kMaxEvents / 2;
  std::vector<Event> first_;  // of the first calls, while they fit into their half
  bool is_first_full_ = false;
  std::deque<std::vector<Event>> last_;  // by call, with `call_` in the other half
  int64_t num_last_ = 0;
  std::vector<Event> call_;  // of the present one
  int64_t num_dropped_ = 0;
};

}  // namespace poptorch_emu
