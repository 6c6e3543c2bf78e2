#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <vector>

#include "numerics/row_summands.h"

namespace poptorch_emu {

// A sum of gradients that are zero but for some rows: it holds these rows alone. Each row has the
// bits that it would have in a sum of dense gradients. One thread at a time uses it, but for
// `add_any`.
class RowSum {
 public:
  // Adds rows to those of a matrix of `num_rows` that `indices` name, but for the padding index.
  // Rows of one index are added up first, in their order, which gives the bits of adding a dense
  // gradient. Throws `Error` for an index that the matrix does not have, and then adds nothing.
  //
  // `rows` is float32 or float16 [..., width], in any order and perhaps expanded, `indices` int64
  // or int32 [...].
  void add(const at::Tensor& rows, const at::Tensor& indices, int64_t num_rows,
           int64_t padding_index);

  // Adds the `index`-th of several summands. Any number of threads may do so at once and in any
  // order: the summands are added up in the order of their numbers. Each comes once. `expect` comes
  // before and says how many there are; all have one size, of which as many must `fit`.
  void add_any(int64_t index, const at::Tensor& rows, const at::Tensor& indices, int64_t num_rows,
               int64_t padding_index);
  void expect(int64_t num_summands) { summands_.expect(num_summands); }
  static bool fit(int64_t num_summands, const at::Tensor& rows, const at::Tensor& indices);

  // Returns rows, or indices, in an order and a type that `add` reads without a copy.
  static at::Tensor readable_rows(const at::Tensor& rows);
  static at::Tensor readable_indices(const at::Tensor& indices);

  // Whether something was added since the last `clear`.
  bool is_begun() const { return num_rows_ > 0; }
  // The numbers of the rows that it holds, each once; int64 [rows].
  at::Tensor indices();
  // The sums of these rows; float32 [rows, width]. Valid until something is added, or the next sum
  // begins.
  at::Tensor values();
  // What was added, for a caller that makes the sums itself.
  const RowSummands& summands() const { return summands_; }
  // Adds the sums to the rows of a matrix, float32 [num_rows, width] and contiguous.
  void add_to(const at::Tensor& matrix);
  // The whole matrix, whose memory stays for the next sum.
  at::Tensor whole();
  int64_t whole_bytes() const {
    return num_rows_ * summands_.width() * static_cast<int64_t>(sizeof(float));
  }

  // Ends the sum.
  void clear();

 private:
  void find_rows();
  int64_t num_sums();
  void write_numbers(int64_t* to) const;  // when the rows are found
  void fold();

  std::atomic<int64_t> num_rows_ = 0;
  RowSummands summands_;
  // Of what `add` added: the number of blocks and their memory. With more than `most_bytes_` they
  // are summed up.
  int64_t num_blocks_ = 0, num_bytes_ = 0, most_bytes_ = 0;
  // The rows and their sums, found when they are asked for.
  std::array<RowSummands::Part, RowSummands::kNumParts> parts_;
  bool has_rows_ = false;
  std::vector<float> sums_;
  bool has_sums_ = false;
  // Zeros but for `rows_of_whole_`, which are those of this sum or of one before it.
  at::Tensor whole_;
  std::vector<int64_t> rows_of_whole_;
  bool is_whole_ = false;
};

}  // namespace poptorch_emu
