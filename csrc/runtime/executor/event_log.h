#pragma once

#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

namespace poptorch_emu {

// One executed action, for profiles. Times are those of the steady clock.
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

// Actions that ran while the log was on, in the order in which they ended. The log keeps the first
// ones since the last `take`, up to a limit.
class EventLog {
 public:
  // Turns the log on or off, between calls of the program, on the thread that runs them.
  void set_on(bool is_on) { is_on_ = is_on; }
  // Returns the events and clears the log.
  std::vector<Event> take() {
    const std::lock_guard lock(mutex_);
    std::vector<Event> events = std::exchange(events_, {});
    events_.reserve(events.size());  // The next call is likely to be as long.
    return events;
  }

  // `is_on` and `add` may be called by any worker.
  bool is_on() const { return is_on_; }
  void add(const Event& event) {
    const std::lock_guard lock(mutex_);
    if (events_.size() < kMostEvents) events_.push_back(event);
  }

 private:
  static constexpr size_t kMostEvents = 100'000;  // about 20 MB as a trace for a viewer

  bool is_on_ = false;
  std::mutex mutex_;
  std::vector<Event> events_;
};

}  // namespace poptorch_emu
