#pragma once

#include <c10/core/Allocator.h>

#include <cstddef>
#include <cstdint>

namespace poptorch_emu {

// Memory of small tensors. Each thread keeps what it gives back for what it asks for next: the C
// library does so for seven blocks of a size, but not for those of tensors, which are aligned, and
// puts together all that is free when it looks for a block of more than 1 KB.
class SmallBlocks {
 public:
  static constexpr size_t kMostBytes = 16 * 1024;

  // Returns at least so many bytes, from 1 to `kMostBytes`, aligned like all of PyTorch's tensors.
  // Any thread may give them back, also as what PyTorch's own allocator gave.
  static c10::DataPtr take(int64_t num_bytes);
};

}  // namespace poptorch_emu
