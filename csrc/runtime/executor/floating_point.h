#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "program/program.h"

namespace poptorch_emu {

// Floating-point exceptions, as far as results show them: a NaN where no argument had one, an
// infinity where all arguments were finite, or a comparison with NaN. What happened inside a kernel
// and left no trace in its results is not seen.

// Says what happened; its text ends with the section of docs/troubleshooting.md that has more.
class FloatingPointException : public std::domain_error {
 public:
  explicit FloatingPointException(const std::string& what);
};

// Returns whether no element is infinite or NaN; integers are finite.
bool is_finite(const at::Tensor& tensor);

// Throws `FloatingPointException` where something went wrong.
//
// Args:
//   instruction: what was just called.
//   registers: where it took its arguments from; they are still there.
//   results: the stack after the call.
void check_floating_point(const Instruction& instruction, const std::vector<at::Tensor>& registers,
                          const std::vector<c10::IValue>& results);

}  // namespace poptorch_emu
