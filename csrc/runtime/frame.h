#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <vector>

#include "program/program.h"

namespace poptorch_emu {

// Runs the instructions of one segment on one virtual IPU. Owns the registers; they are empty
// between runs. Used by one thread at a time.
class Frame {
 public:
  Frame(const Segment& segment, bool checks_floating_point)
      : segment_(segment),
        checks_floating_point_(checks_floating_point),
        registers_(segment.num_registers) {}

  at::Tensor& operator[](RegisterId id) { return registers_[id.value]; }

  // Throws `Error` with the instruction's origin and arguments when a kernel fails, or when it
  // raises a floating-point exception and those are checked.
  void run(int64_t micro_batch, int64_t replica);

  // Releases every register, also after an error.
  void clear();

 private:
  void execute(const Instruction& instruction);
  void take_results(const Instruction& instruction);
  [[noreturn]] void fail(const Instruction& instruction, const std::string& cause,
                         int64_t micro_batch, int64_t replica);

  const Segment& segment_;
  const bool checks_floating_point_;
  std::vector<at::Tensor> registers_;
  std::vector<c10::IValue> stack_;
};

}  // namespace poptorch_emu
