#pragma once

// Makes the compiler write a function for several kinds of x86 processors, of which each takes its
// own when it loads the engine.
//
// By level, not by name: a name of a processor stands for that maker's alone. GCC before 12 knows
// no levels.
#if defined(__x86_64__) && defined(__GNUC__) && __GNUC__ >= 12 && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define POPTORCH_EMU_FOR_EACH_CPU \
  __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define POPTORCH_EMU_FOR_EACH_CPU
#endif
