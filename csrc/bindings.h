#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <string>
#include <vector>

#include "program/program.h"

namespace poptorch_emu {

// Adds what code is written in: registers, debug records and bodies.
void bind_instructions(pybind11::module_& m);
// Adds `Program` and its enumerations.
void bind_program(pybind11::module_& m);
// Adds looks at many tensors, or objects in dicts, at once.
void bind_guards(pybind11::module_& m);

// Returns an instruction that calls an operator with Python's arguments: registers and lists of
// them become slots, other values constants of the schema's types. Throws `Error` where arguments
// and schema do not agree.
Instruction make_instruction(const std::string& name, const std::string& overload,
                             const pybind11::list& args, const pybind11::dict& kwargs,
                             const std::vector<int64_t>& outputs, const std::vector<int64_t>& dies,
                             Debug debug, std::vector<Body> bodies);

std::vector<RegisterId> registers(const std::vector<int64_t>& indices);

}  // namespace poptorch_emu
