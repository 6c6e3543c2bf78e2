// Checks the positions of exchanges between replicas in a program.

#include <set>
#include <string>

#include "common/errors.h"
#include "program/program.h"

namespace poptorch_emu {
namespace {

// Rejects collectives in bodies, because a frame can wait between two instructions of a segment,
// but not within an instruction.
void check_bodies(const Segment& segment, const std::vector<Instruction>& instructions) {
  for (const Instruction& instruction : instructions) {
    for (const Body& body : instruction.bodies) {
      for (const Instruction& inner : body.instructions) {
        if (inner.control != Control::kCollective) continue;
        throw Error("'" + inner.debug.node + "' of segment '" + segment.name +
                    "' is an exchange between replicas inside a loop or a branch");
      }
      check_bodies(segment, body.instructions);
    }
  }
}

void check_slot(const Segment& segment, const Instruction& instruction) {
  if (instruction.slots.size() == 1 && instruction.slots.front().argument == 0) return;
  throw Error("'" + instruction.debug.node + "' of segment '" + segment.name +
              "' is an exchange between replicas, to which each gives one register");
}

void check_relay(const Program& program, const Segment& segment, std::set<CollectiveId>& relayed) {
  const CollectiveId id = segment.relayed;
  const std::string where = "Segment '" + segment.name + "' carries out an exchange between " +
                            "replicas with other processes";
  const auto num_segments = static_cast<int64_t>(program.segments.size());
  if (id.segment.value >= num_segments || id.index < 0 ||
      id.index >= static_cast<int64_t>(program.at(id.segment).collectives().size())) {
    throw Error(where + " that does not exist");
  }
  if (!relayed.insert(id).second) throw Error(where + " that another segment carries out");
  const bool does_more = !segment.loads.empty() || !segment.instructions.empty() ||
                         !segment.stores.empty() || !segment.incoming.empty() ||
                         !segment.outgoing.empty() || segment.has_exchanges();
  if (segment.kind != SegmentKind::kMicroBatch || does_more) {
    throw Error(where + ", which only a micro-batch segment may do that does nothing else");
  }
}

}  // namespace

void Program::check_collectives() const {
  std::set<CollectiveId> relayed;
  for (const Segment& segment : segments) {
    check_bodies(segment, segment.instructions);
    if (segment.relays()) check_relay(*this, segment, relayed);
    for (const Instruction* collective : segment.collectives()) {
      check_slot(segment, *collective);
      if (segment.kind == SegmentKind::kMicroBatch) continue;
      throw Error("'" + collective->debug.node + "' of segment '" + segment.name +
                  "' is an exchange between replicas, which only a micro-batch segment may have");
    }
  }
}

}  // namespace poptorch_emu
