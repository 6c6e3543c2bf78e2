#pragma once

#include <vector>

#include "program/program.h"

namespace poptorch_emu {

// Returns by accumulator whether all that read its touched rows, or their sums, can make these from
// the `RowSummands` behind a tensor.
std::vector<bool> lazy_row_sums(const Program& program);

}  // namespace poptorch_emu
