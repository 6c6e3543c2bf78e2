#pragma once

#include <set>
#include <vector>

#include "program/program.h"

namespace poptorch_emu {

// Returns by segment the variables whose very memory its code may read: those that it loads, and
// those of which a link brings a view from another segment.
std::vector<std::set<VariableId>> variables_in_reach(const Program& program);

}  // namespace poptorch_emu
