#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "program/program.h"

namespace poptorch_emu {

// Floating-point exceptions that can be seen in results: a NaN where no argument had one, an
// infinity where all arguments were finite, or a comparison with NaN. An exception inside a kernel
// that leaves neither in its results is not found.

// Its text says what happened, and ends with a section of docs/troubleshooting.md.
class FloatingPointException : public std::domain_error {
 public:
  explicit FloatingPointException(const std::string& what);
};

// Returns whether no element is infinite or NaN; integers are finite.
bool is_finite(const at::Tensor& tensor);

// Throws `FloatingPointException` if the call of an instruction raised one.
//
// Args:
//   instruction: the instruction that was called.
//   registers: still hold its arguments.
//   results: the stack after the call.
void check_floating_point(const Instruction& instruction, const std::vector<at::Tensor>& registers,
                          const std::vector<c10::IValue>& results);

}  // namespace poptorch_emu
