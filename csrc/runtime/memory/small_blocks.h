#pragma once

#include <c10/core/Allocator.h>

#include <cstddef>
#include <cstdint>

namespace poptorch_emu {

// Memory of small tensors. Each thread keeps the blocks that it releases for its next requests. The
// C library keeps only seven blocks of a size, and none with the alignment of tensors. It also
// merges all free blocks when it searches for one of more than 1 KB.
class SmallBlocks {
 public:
  static constexpr size_t kMostBytes = 16 * 1024;

  // Returns at least `num_bytes`, from 1 to `kMostBytes`, aligned like all of PyTorch's tensors.
  // Any thread may release them, also through PyTorch's own allocator.
  static c10::DataPtr take(int64_t num_bytes);
};

}  // namespace poptorch_emu
