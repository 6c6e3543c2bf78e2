// Checks that the schedule runs each segment as often as required, in order, on its own IPU.

#include <string>
#include <vector>

#include "common/errors.h"
#include "program/program.h"

namespace poptorch_emu {
namespace {

void check_action(const Program& program, const Action& action, int64_t ipu, int64_t last) {
  const Segment& segment = program.at(action.segment);
  const std::string micro_batch = std::to_string(action.micro_batch);
  if (segment.ipu != ipu) {
    throw Error("IPU " + std::to_string(ipu) + " is to run '" + segment.name +
                "', which belongs to IPU " + std::to_string(segment.ipu));
  }
  if (action.micro_batch < 0) {
    throw Error("'" + segment.name + "' runs for micro-batch " + micro_batch +
                ", but they are counted from 0");
  }
  if (action.micro_batch == last) {
    throw Error("'" + segment.name + "' runs twice for micro-batch " + micro_batch);
  }
  if (action.micro_batch < last) {
    throw Error("'" + segment.name + "' runs for micro-batch " + micro_batch + " after " +
                std::to_string(last) + ", but their order is the order of their numbers");
  }
}

int64_t runs_in_a_window(const Program& program, const Segment& segment) {
  switch (segment.kind) {
    case SegmentKind::kMicroBatch:
      return program.runs_per_window();
    case SegmentKind::kWindow:
      return 1;
    case SegmentKind::kPreparation:
      return 0;
  }
  return 0;
}

}  // namespace

void Program::check_schedule() const {
  std::vector<int64_t> last(segments.size(), -1);
  std::vector<int64_t> count(segments.size(), 0);
  for (size_t ipu = 0; ipu < schedule.size(); ++ipu) {
    for (const Action& action : schedule[ipu]) {
      const int64_t id = action.segment.value;
      if (id < 0 || id >= static_cast<int64_t>(segments.size())) {
        throw Error("The schedule names segment " + std::to_string(id) + ", but there are " +
                    std::to_string(segments.size()));
      }
      check_action(*this, action, static_cast<int64_t>(ipu), last[id]);
      last[id] = action.micro_batch;
      ++count[id];
    }
  }
  for (size_t id = 0; id < segments.size(); ++id) {
    const Segment& segment = segments[id];
    const int64_t expected = runs_in_a_window(*this, segment);
    if (count[id] != expected || last[id] + 1 != expected) {
      throw Error("'" + segment.name + "' is scheduled " + std::to_string(count[id]) +
                  " times in a window instead of " + std::to_string(expected));
    }
  }
}

}  // namespace poptorch_emu
