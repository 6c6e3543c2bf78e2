#pragma once

#include <cstdint>
#include <mutex>
#include <utility>
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

// The actions that ran while the log was on, in the order in which they ended: of those since the
// last `take` the first ones, up to a bound.
class EventLog {
 public:
  // By the thread that runs a call, between calls.
  void set_on(bool is_on) { is_on_ = is_on; }
  // Returns the events, and forgets them.
  std::vector<Event> take() {
    const std::lock_guard lock(mutex_);
    std::vector<Event> events = std::exchange(events_, {});
    events_.reserve(events.size());  // The next call is likely to be as long.
    return events;
  }

  // By any worker.
  bool is_on() const { return is_on_; }
  void add(const Event& event) {
    const std::lock_guard lock(mutex_);
    if (events_.size() < kMostEvents) events_.push_back(event);
  }

 private:
  static constexpr size_t kMostEvents = 100'000;  // some 20 MB as a trace for a viewer

  bool is_on_ = false;
  std::mutex mutex_;
  std::vector<Event> events_;
};

}  // namespace poptorch_emu
