#pragma once

#include <string>
#include <string_view>

#include "program/program.h"

namespace poptorch_emu {

// Returns the bytes of `program`: a magic word, the version of this format, a checksum, and every
// member of every table. Operators are written by name; the bytes contain no code.
//
// Throws `Error` for an argument whose kind cannot be stored in the file.
std::string serialize(const Program& program);

// Returns the program that `serialize` wrote to these bytes, after `validate`.
//
// Throws `Error` if the bytes are no program, are truncated or damaged, have another format
// version, or contain operators or arguments that this PyTorch does not have. Every size is checked
// before it is used, so that no input makes the reader crash.
Program deserialize(std::string_view bytes);

}  // namespace poptorch_emu
