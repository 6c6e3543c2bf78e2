#include "runtime/executor/event_log.h"

#include <utility>

namespace poptorch_emu {
namespace {

int64_t length(const std::vector<Event>& events) { return static_cast<int64_t>(events.size()); }

void append(std::vector<Event>& target, const std::vector<Event>& events) {
  target.insert(target.end(), events.begin(), events.end());
}

}  // namespace

void EventLog::start(int64_t max_events) {
  const std::lock_guard lock(mutex_);
  max_events_of_a_half_ = max_events / 2;
  is_on_ = true;
}

void EventLog::begin_call() {
  const std::lock_guard lock(mutex_);
  if (call_.empty()) return;
  if (length(first_) + length(call_) > max_events_of_a_half_) is_first_full_ = true;
  if (!is_first_full_) {
    append(first_, call_);
    call_.clear();
  } else {
    num_last_ += length(call_);
    last_.push_back(std::exchange(call_, {}));
  }
}

void EventLog::add(const Event& event) {
  const std::lock_guard lock(mutex_);
  while (!last_.empty() && num_last_ + length(call_) >= max_events_of_a_half_) {
    drop_oldest_of_last();
  }
  if (length(call_) < max_events_of_a_half_) {
    call_.push_back(event);
  } else {
    ++num_dropped_;
  }
}

void EventLog::drop_oldest_of_last() {
  const int64_t count = length(last_.front());
  num_last_ -= count;
  num_dropped_ += count;
  last_.pop_front();
}

int64_t EventLog::num_dropped() const {
  const std::lock_guard lock(mutex_);
  return num_dropped_;
}

std::vector<Event> EventLog::take() {
  const std::lock_guard lock(mutex_);
  const auto num_events = call_.size();
  std::vector<Event> events = std::exchange(first_, {});
  if (events.empty() && last_.empty()) events.swap(call_);
  for (const std::vector<Event>& call : std::exchange(last_, {})) append(events, call);
  append(events, std::exchange(call_, {}));
  call_.reserve(num_events);  // The next call is likely to be as long.
  is_first_full_ = false;
  num_last_ = 0;
  num_dropped_ = 0;
  return events;
}

}  // namespace poptorch_emu
