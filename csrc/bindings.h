#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <string>
#include <vector>

#include "program/program.h"

namespace poptorch_emu {

// Binds the parts of instructions to Python: registers, debug records and bodies.
void bind_instructions(pybind11::module_& m);
// Binds `Program` and its enumerations to Python.
void bind_program(pybind11::module_& m);
// Binds functions that check many tensors, or many objects in dictionaries, in one call.
void bind_guards(pybind11::module_& m);

// Returns an instruction that calls an operator with Python's arguments. Registers and lists of
// them become slots; other values become constants of the schema's types. Throws `Error` if the
// arguments do not match the schema.
Instruction make_instruction(const std::string& name, const std::string& overload,
                             const pybind11::list& args, const pybind11::dict& kwargs,
                             const std::vector<int64_t>& outputs, const std::vector<int64_t>& dies,
                             Debug debug, std::vector<Body> bodies);

std::vector<RegisterId> registers(const std::vector<int64_t>& indices);

}  // namespace poptorch_emu
