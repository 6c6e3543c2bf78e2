#pragma once

#include <exception>
#include <string>
#include <utility>

namespace poptorch_emu {

// The one exception of the engine. `bindings.cpp` turns it into `poptorch_emu.Error`.
class Error : public std::exception {
 public:
  explicit Error(std::string message, std::string category = "poptorch_cpp_error")
      : message_(std::move(message)), category_(std::move(category)) {}

  const char* what() const noexcept override { return message_.c_str(); }
  const std::string& message() const { return message_; }
  // PopTorch's word for the origin of an error, such as "poptorch_cpp_error".
  const std::string& category() const { return category_; }

 private:
  std::string message_;
  std::string category_;
};

}  // namespace poptorch_emu
