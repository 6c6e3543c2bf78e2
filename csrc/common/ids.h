#pragma once

#include <compare>
#include <cstdint>

namespace poptorch_emu {

// An index into one table of a program; the ids of different tables are different types.
template <typename Tag>
struct Id {
  int64_t value = -1;
  auto operator<=>(const Id&) const = default;
};

using SegmentId = Id<struct SegmentTag>;
using LinkId = Id<struct LinkTag>;
using VariableId = Id<struct VariableTag>;
using AccumulatorId = Id<struct AccumulatorTag>;
using ConstantId = Id<struct ConstantTag>;
using ScalarId = Id<struct ScalarTag>;
using InputId = Id<struct InputTag>;
using OutputId = Id<struct OutputTag>;
// A place for one tensor in the frame of one segment.
using RegisterId = Id<struct RegisterTag>;

}  // namespace poptorch_emu
