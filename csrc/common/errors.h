#pragma once

#include <exception>
#include <string>
#include <utility>

namespace poptorch_emu {

// The only exception class of the engine. `bindings.cpp` translates it to `poptorch_emu.Error`.
class Error : public std::exception {
 public:
  explicit Error(std::string message) : message_(std::move(message)) {}

  const char* what() const noexcept override { return message_.c_str(); }
  const std::string& message() const { return message_; }

 private:
  std::string message_;
};

}  // namespace poptorch_emu
