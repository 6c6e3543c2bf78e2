#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

namespace poptorch_emu {

// Summands for single rows of a float32 matrix, which are stored as they arrive and added up when a
// row is read. Several threads can then add up different rows in parallel. Equal rows, for example
// the gradients of a mean, are stored once.
//
// Summands arrive in blocks. A sum has the same bits as a sum of dense matrices in block order,
// where each matrix is zero except for the rows of its block. Additions within a float16 block are
// rounded to float16.
class RowSummands {
 public:
  // Number of parts into which rows are divided by their index.
  static constexpr int64_t kNumParts = 16;

  RowSummands();
  ~RowSummands();

  // Reserves `num_blocks` blocks, which several threads may then fill in parallel.
  void expect(int64_t num_blocks);
  // Fills a block with rows that are added to the rows named by `indices`, except for the padding
  // index. `rows` is float32 or float16 [..., width], may be expanded and has dense rows; `indices`
  // is a contiguous int64 [...] tensor. The block keeps its memory for the next call.
  void fill(int64_t block, const at::Tensor& rows, const at::Tensor& indices,
            int64_t padding_index);
  // Removes all blocks; no thread may fill one at the same time.
  void clear() { ++generation_; }

  int64_t width() const { return width_; }
  // Returns the number of rows to add.
  int64_t count() const;
  // Returns the memory that a block with these rows needs, in bytes.
  static int64_t num_bytes(const at::Tensor& rows, const at::Tensor& indices);

  // The rows of one part, each listed once, in order of arrival. Valid until a block is filled.
  class Part {
   public:
    const std::vector<int64_t>& numbers() const { return numbers_; }
    int64_t size() const { return static_cast<int64_t>(numbers_.size()); }
    // Writes the sums of rows [begin, end) one after the other. Any number of threads may call it.
    void write_sums(int64_t begin, int64_t end, float* to) const;

   private:
    friend RowSummands;

    // A summand, linked to the next one of the same sum (-1 after the last). Summands of one block
    // are added up first.
    struct Summand {
      const float* row;
      int32_t next;
      int32_t block;  // twice the block's number, plus 1 for float16
    };

    void begin(int64_t width, size_t count);
    void add(int64_t row, const float* summand, int32_t block);
    const float* next_block(int32_t& summand) const;

    int64_t width_ = 0;
    std::vector<int64_t> numbers_;
    std::vector<int32_t> first_, last_;  // first and last summand of each sum
    std::vector<Summand> summands_;
    std::vector<int32_t> table_;  // sums by the hash of their rows; -1 for an empty entry
    int table_bits_ = 0;
  };

  // Finds the rows of a part. Any number of threads may call it.
  void find(int64_t part, Part& found) const;

 private:
  struct Block;

  template <class Use>
  void for_each_filled(const Use& use) const;

  std::atomic<int64_t> width_ = 0;
  std::vector<std::unique_ptr<Block>> blocks_;  // null before the first use
  int64_t generation_ = 0;                      // current generation; other blocks are invalid
};

}  // namespace poptorch_emu
