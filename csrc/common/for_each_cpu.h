#pragma once

// Compiles a function for several levels of x86 processors, from which the loader picks the best.
//
// Levels are used instead of processor names, because a name covers one vendor only. GCC before
// version 12 does not support levels.
#if defined(__x86_64__) && defined(__GNUC__) && __GNUC__ >= 12 && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define POPTORCH_EMU_FOR_EACH_CPU \
  __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define POPTORCH_EMU_FOR_EACH_CPU
#endif
