#pragma once

namespace poptorch_emu {

// Makes large tensors give their memory back when they are released, in the whole process and for
// good. By itself glibc keeps them in its heaps, where weights, activations and workspace of the
// virtual IPUs break each other's holes up. Does nothing where the user has chosen by
// MALLOC_MMAP_THRESHOLD_, or with another C library.
void limit_heap_growth();

}  // namespace poptorch_emu
