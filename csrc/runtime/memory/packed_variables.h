#pragma once

#include <optional>
#include <vector>

#include "program/program.h"

namespace poptorch_emu {

// Tells which variables memory need not hold twice. A preparation may bring the elements of one
// into oneDNN's order ("pack" them), and a load may for products. If nothing else reads the
// variable, what was packed can stand for it from then on: whoever asks for the variable gets the
// elements back in their own order, bit for bit.
class PackedVariables {
 public:
  explicit PackedVariables(const Program& program);

  // The variable that an instruction of a preparation packs, and that its first result may replace.
  std::optional<VariableId> packed_by(const Segment& preparation,
                                      const Instruction& instruction) const;
  // Whether what is packed for products may replace the variable.
  bool is_for_products(VariableId id) const { return readers_[id.value] == Readers::kProducts; }

 private:
  enum class Readers { kNone, kPreparations, kProducts, kOthers };
  void note(const Load& load, const Segment& segment);
  void note(VariableId id, Readers readers);

  const Program& program_;
  std::vector<Readers> readers_;  // by variable
};

}  // namespace poptorch_emu
