#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

namespace poptorch_emu {

// What is to be added to single rows of a matrix of float32, kept as it comes, in float32: each row
// becomes a sum when it is asked for. Then several threads can ask, each for a part of the
// rows, and rows that are alike, as those of a mean are, are kept once.
//
// It comes in blocks. Sums have the bits that they have where dense matrices are added up in the
// order of the blocks, each of which is zero but for the rows of one. Those of a block of float16
// are rounded to that whenever one is added to another.
class RowSummands {
 public:
  // The rows are in this many parts, by their numbers.
  static constexpr int64_t kNumParts = 16;

  RowSummands();
  ~RowSummands();

  // Makes places for `num_blocks`, which several threads may then fill at once.
  void expect(int64_t num_blocks);
  // Fills a block with rows that are added to those that `indices` name, but for the padding index.
  // `rows` is float32 or float16 [..., width], perhaps expanded, with its numbers next to each
  // other; `indices` int64 [...] and contiguous. The memory of the block stays for the next time.
  void fill(int64_t block, const at::Tensor& rows, const at::Tensor& indices,
            int64_t padding_index);
  // Forgets all blocks, when no thread fills one.
  void clear() { ++generation_; }

  int64_t width() const { return width_; }
  // How many rows are to be added.
  int64_t count() const;
  // How much memory such a block needs.
  static int64_t num_bytes(const at::Tensor& rows, const at::Tensor& indices);

  // The rows of one part, each once, in the order in which they came. Valid until a block is
  // filled.
  class Part {
   public:
    const std::vector<int64_t>& numbers() const { return numbers_; }
    int64_t size() const { return static_cast<int64_t>(numbers_.size()); }
    // Writes the sums of [begin, end) of them, behind each other. By any number of threads.
    void write_sums(int64_t begin, int64_t end, float* to) const;

   private:
    friend RowSummands;

    // The next summand of the same sum, -1 for the last. Those of one block are added up before.
    struct Summand {
      const float* row;
      int32_t next;
      int32_t block;  // twice its number, and 1 if it is of float16
    };

    void begin(int64_t width, size_t count);
    void add(int64_t row, const float* summand, int32_t block);
    const float* next_block(int32_t& summand) const;

    int64_t width_ = 0;
    std::vector<int64_t> numbers_;
    std::vector<int32_t> first_, last_;  // by sum, its summands
    std::vector<Summand> summands_;
    std::vector<int32_t> table_;  // sums by the hash of their rows; -1 where there is none
    int table_bits_ = 0;
  };

  // Finds a part; by any number of threads.
  void find(int64_t part, Part& found) const;

 private:
  struct Block;

  template <class Use>
  void for_each_filled(const Use& use) const;

  std::atomic<int64_t> width_ = 0;
  std::vector<std::unique_ptr<Block>> blocks_;  // null before the first use
  int64_t generation_ = 0;                      // of those that count
};

}  // namespace poptorch_emu
