#pragma once

#include <pybind11/pybind11.h>

namespace poptorch_emu {

// Adds `Program`, what its code is written in, and its enumerations.
void bind_program(pybind11::module_& m);
// Adds looks at many tensors, or objects in dicts, at once.
void bind_guards(pybind11::module_& m);

}  // namespace poptorch_emu
