#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace poptorch_emu {

// A sum of gradients that are zero but for some rows: it holds these rows alone, behind each other
// in the order in which they came. Each has the bits that it would have in a sum of dense
// gradients. Used by one thread at a time.
class RowSum {
 public:
  // Adds rows to those of a matrix of `num_rows` that `indices` name, but for the padding index.
  // Rows of one index are added up first, in their order: that gives the bits of adding a dense
  // gradient. Throws `Error` for an index that the matrix does not have, and then adds nothing.
  //
  // `rows` is float32 [..., width], in any order and perhaps expanded, `indices` int64 or int32
  // [...].
  void add(const at::Tensor& rows, const at::Tensor& indices, int64_t num_rows,
           int64_t padding_index);

  // The same in an order and a type that `add` reads without a copy.
  static at::Tensor readable_rows(const at::Tensor& rows);
  static at::Tensor readable_indices(const at::Tensor& indices);

  // Whether something was added since the last `clear`.
  bool is_begun() const { return num_rows_ > 0; }
  // Which rows it holds, each once; int64 [rows].
  at::Tensor indices() const;
  // What these are; float32 [rows, width]. Valid until something is added, or the next is begun.
  at::Tensor values();
  // Adds them to those of a matrix, float32 [num_rows, width] and contiguous.
  void add_to(const at::Tensor& matrix) const;
  // The whole matrix, whose memory stays for the next sum.
  at::Tensor whole();
  int64_t whole_bytes() const { return num_rows_ * width_ * static_cast<int64_t>(sizeof(float)); }

  // Ends the sum. What it held is forgotten when the next one is begun: until then all workers may
  // have to wait.
  void clear() { num_rows_ = 0; }

 private:
  void forget();
  void find_rows(const at::Tensor& rows);
  void find_slots(const at::Tensor& indices, int64_t padding_index);
  void link_equal();
  void add_linked(const float* values, int64_t num_old_slots);

  int64_t num_rows_ = 0;
  int64_t width_ = 0;
  std::vector<int64_t> indices_;  // by slot
  std::vector<float> values_;     // by slot, `width_` numbers each; what lies behind is old
  std::vector<int32_t> slot_;     // by row of the matrix; -1 for those that it does not hold
  at::Tensor whole_;              // zeros, to which this sum,
  bool is_whole_ = false;         // or the one before it, may have been added

  // Of the rows that are being added, by their position: where the row begins, counted from the
  // first; the slot, -1 for the padding index; the next position of the same slot, -1 for the last.
  std::vector<int64_t> begin_of_;
  std::vector<int32_t> slot_of_;
  std::vector<int64_t> next_;
  std::vector<int64_t> first_;  // by slot, its first position; -1 between calls
};

}  // namespace poptorch_emu
