#pragma once

#include <string>
#include <string_view>

#include "program/program.h"

namespace poptorch_emu {

// Returns the bytes of `program`: a magic word, the version of this format, a checksum, and every
// member of every table. Operators are written by name; nothing in the bytes is code.
//
// Throws `Error` for an argument of a kind that has no form in the file.
std::string serialize(const Program& program);

// Returns the program that `serialize` made these bytes of, after `validate`.
//
// Throws `Error` if the bytes are no program, are cut short or damaged, are of another version of
// the format, or name an operator or give it arguments that this PyTorch does not know. Every size
// is checked before it is used: no bytes whatever make it crash.
Program deserialize(std::string_view bytes);

}  // namespace poptorch_emu
