#pragma once

#include <optional>
#include <vector>

#include "program/program.h"

namespace poptorch_emu {

// Tells which variables memory need not hold twice. A preparation may bring the elements of one
// into oneDNN's order ("pack" them). If nothing but preparations reads the variable, what was
// packed can stand for it from then on: whoever asks for the variable gets the elements back in
// their own order, bit for bit.
class PackedVariables {
 public:
  explicit PackedVariables(const Program& program);

  // The variable that an instruction of a preparation packs, and that its first result may replace.
  std::optional<VariableId> packed_by(const Segment& preparation,
                                      const Instruction& instruction) const;

 private:
  const Program& program_;
  std::vector<bool> is_only_prepared_;  // by variable
};

}  // namespace poptorch_emu
