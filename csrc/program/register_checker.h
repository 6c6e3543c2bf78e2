#pragma once

#include <string>
#include <vector>

#include "program/program.h"

namespace poptorch_emu {

// Returns whether a slot passes an operator's result of the last run, to be overwritten. In the
// first run of a frame the register is empty.
bool gives_own_result(const Instruction& instruction, const Slot& slot);

// Checks the registers of one piece of code: each is written once, and before it is read.
class RegisterChecker {
 public:
  // `where` names the code in messages, for example "segment 'forward 0'".
  RegisterChecker(int64_t num_registers, std::string where);

  // Each function throws an `Error` that names the first fault.
  void check(const Instruction& instruction);
  void read(RegisterId id, const std::string& user) const;
  void write(RegisterId id, const std::string& user);

 private:
  void check_num_outputs(const Instruction& instruction) const;
  void check_bodies(const Instruction& instruction) const;
  void check_range(RegisterId id, const std::string& user) const;

  std::string where_;
  std::vector<bool> written_;
};

}  // namespace poptorch_emu
