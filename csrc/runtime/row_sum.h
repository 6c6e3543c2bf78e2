#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace poptorch_emu {

// Adds to single rows of a sum of gradients, and knows which rows that were, so that they alone
// need to be cleared. Used by one thread at a time.
class RowSum {
 public:
  // Adds rows to those of `sum` (float32 [num_rows, width], contiguous) that `indices` name, but
  // for the padding index. Rows of one index are added up first, in their order: that gives the
  // bits of adding a dense gradient. Throws `Error` for an index that `sum` does not have.
  //
  // `rows` is float32 [..., width], `indices` int64 or int32 [...].
  void add(const at::Tensor& sum, const at::Tensor& rows, const at::Tensor& indices,
           int64_t padding_index);

  // The rows that were added to since they were last cleared, each once.
  const std::vector<int64_t>& touched() const { return touched_; }

  // Makes these rows of `sum` zero.
  void clear(const at::Tensor& sum);
  // Forgets them, where `sum` is no longer needed.
  void forget();

 private:
  void link_equal(const at::Tensor& indices, int64_t num_rows, int64_t padding_index);

  std::vector<int64_t> touched_;
  std::vector<char> is_touched_;  // by row
  // For each row the first position of the present `indices` that names it; -1 between calls.
  std::vector<int64_t> first_;
  // For each position the next one that names the same row; -1 for the last.
  std::vector<int64_t> next_;
};

}  // namespace poptorch_emu
