#pragma once

#include <cfenv>

namespace poptorch_emu {

// Returns the floating-point modes of the current thread: rounding, and flushing of denormals to
// zero. For example, `torch.set_flush_denormal` changes them for its own thread only.
inline std::fenv_t floating_point_modes() {
  std::fenv_t modes;
  std::fegetenv(&modes);
  return modes;
}

// Returns the floating-point modes of a new thread.
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

// Sets the floating-point modes of the current thread, and restores the earlier ones at the end.
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
