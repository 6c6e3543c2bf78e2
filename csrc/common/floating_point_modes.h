#pragma once

#include <cfenv>

namespace poptorch_emu {

// How a thread rounds, and whether it takes denormal numbers for zero, as
// `torch.set_flush_denormal` says to the thread that calls it alone.
inline std::fenv_t floating_point_modes() {
  std::fenv_t modes;
  std::fegetenv(&modes);
  return modes;
}

// Those that a thread has at its start.
inline const std::fenv_t& default_floating_point_modes() {
  static const std::fenv_t modes = [] {
    const std::fenv_t before = floating_point_modes();
    std::fesetenv(FE_DFL_ENV);
    const std::fenv_t found = floating_point_modes();
    std::fesetenv(&before);
    return found;
  }();
  return modes;
}

// Gives the current thread these modes, and back what it had.
class FloatingPointModes {
 public:
  explicit FloatingPointModes(const std::fenv_t& modes) { std::fesetenv(&modes); }
  ~FloatingPointModes() { std::fesetenv(&before_); }
  FloatingPointModes(const FloatingPointModes&) = delete;
  FloatingPointModes& operator=(const FloatingPointModes&) = delete;

 private:
  const std::fenv_t before_ = floating_point_modes();
};

}  // namespace poptorch_emu
