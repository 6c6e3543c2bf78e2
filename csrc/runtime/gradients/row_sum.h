#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <vector>

#include "numerics/row_summands.h"

namespace poptorch_emu {

// A sum of gradients that are zero except for some rows; only these rows are stored. Each row has
// the same bits as in a sum of dense gradients. Only `add_any` may be called by several threads.
class RowSum {
 public:
  // Adds rows to the rows of a matrix with `num_rows` rows that `indices` name, except the padding
  // index. Rows with the same index are first added to each other, in order, which gives the bits
  // of adding a dense gradient. Throws `Error` for an index out of range, and then adds nothing.
  //
  // `rows` is float32 or float16 [..., width] with any strides; `indices` is int64 or int32 [...].
  void add(const at::Tensor& rows, const at::Tensor& indices, int64_t num_rows,
           int64_t padding_index);

  // Adds summand `index` of several summands. Any number of threads may add in any order; the
  // summands are added up in the order of their indices. Each index is added once. The caller first
  // passes the number of summands to `expect`; all have one size, of which that many must `fit`.
  void add_any(int64_t index, const at::Tensor& rows, const at::Tensor& indices, int64_t num_rows,
               int64_t padding_index);
  void expect(int64_t num_summands) { summands_.expect(num_summands); }
  static bool fit(int64_t num_summands, const at::Tensor& rows, const at::Tensor& indices);

  // Returns rows, or indices, with strides and a type that `add` reads without a copy.
  static at::Tensor readable_rows(const at::Tensor& rows);
  static at::Tensor readable_indices(const at::Tensor& indices);

  // Returns whether something was added since the last `clear`.
  bool is_begun() const { return num_rows_ > 0; }
  // Returns the indices of the stored rows, each once; int64 [rows].
  at::Tensor indices();
  // Returns the sums of these rows, float32 [rows, width], valid until the next addition or sum.
  at::Tensor values();
  // Returns the summands, for a caller that adds them up itself.
  const RowSummands& summands() const { return summands_; }
  // Adds the sums to the rows of a contiguous float32 matrix [num_rows, width].
  void add_to(const at::Tensor& matrix);
  // Returns the whole matrix, whose memory is kept for the next sum.
  at::Tensor whole();
  int64_t whole_bytes() const {
    return num_rows_ * summands_.width() * static_cast<int64_t>(sizeof(float));
  }

  // Ends the sum, so that the next one begins.
  void clear();

 private:
  void find_rows();
  int64_t num_sums();
  void write_numbers(int64_t* to) const;  // requires a call of `find_rows` before
  void fold();

  std::atomic<int64_t> num_rows_ = 0;
  RowSummands summands_;
  // Number and memory of the blocks from `add`. Above `most_bytes_` they are added up.
  int64_t num_blocks_ = 0, num_bytes_ = 0, most_bytes_ = 0;
  // The rows and their sums, computed on demand.
  std::array<RowSummands::Part, RowSummands::kNumParts> parts_;
  bool has_rows_ = false;
  std::vector<float> sums_;
  bool has_sums_ = false;
  // Zero except for `rows_of_whole_`, the rows of this sum or an earlier one.
  at::Tensor whole_;
  std::vector<int64_t> rows_of_whole_;
  bool is_whole_ = false;
};

}  // namespace poptorch_emu
