#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "program/program.h"

namespace poptorch_emu {

// Floating-point exceptions that are visible in results: a NaN without a NaN argument, an infinity
// from finite arguments, or a comparison with NaN. Exceptions within a kernel that leave neither
// NaN nor infinity in its results are not detected.

// The text describes the exception and ends with a section of docs/troubleshooting.md.
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
//   registers: registers that still hold its arguments.
//   results: the stack after the call.
void check_floating_point(const Instruction& instruction, const std::vector<at::Tensor>& registers,
                          const std::vector<c10::IValue>& results);

}  // namespace poptorch_emu
