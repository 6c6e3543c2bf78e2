#include "runtime/executor/event_log.h"

#include <utility>

namespace poptorch_emu {
namespace {

// Some 20 MB as a trace for a viewer.
constexpr size_t kMostEvents = 100'000;

}  // namespace

void EventLog::add(const Event& event) {
  const std::lock_guard lock(mutex_);
  if (events_.size() < kMostEvents) events_.push_back(event);
}

std::vector<Event> EventLog::take() {
  const std::lock_guard lock(mutex_);
  std::vector<Event> events = std::exchange(events_, {});
  events_.reserve(events.size());  // The next call is likely to be as long.
  return events;
}

}  // namespace poptorch_emu
