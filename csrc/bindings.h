#pragma once

#include <pybind11/pybind11.h>

namespace poptorch_emu {

// Adds `Program` and what its code is written in: registers, bodies, debug records, enumerations.
void bind_program(pybind11::module_& m);
// Adds looks at many tensors, or objects in dicts, at once.
void bind_guards(pybind11::module_& m);

}  // namespace poptorch_emu
