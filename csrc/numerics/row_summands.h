#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <vector>

namespace poptorch_emu {

// What is to be added to single rows of a matrix of float32, kept as it comes: each row becomes a
// sum when somebody asks for it. Then several threads can ask, each for a part of the rows, and
// rows that are alike, as those of a mean are, are kept once.
//
// Sums have the bits that they have where dense matrices are added up, each of which is zero but
// for the rows of one `add`.
class RowSummands {
 public:
  // The rows are in so many parts, by their numbers.
  static constexpr int64_t kNumParts = 16;

  RowSummands() = default;
  RowSummands(const RowSummands&) = delete;
  RowSummands& operator=(const RowSummands&) = delete;

  // Adds rows to those that `indices` name, but for the padding index. `rows` is float32 [...,
  // width], perhaps expanded, with its numbers next to each other; `indices` int64 [...] and
  // contiguous.
  void add(const at::Tensor& rows, const at::Tensor& indices, int64_t padding_index);
  void clear();

  int64_t width() const { return width_; }
  // How many rows were added, and how much memory they need.
  int64_t count() const;
  int64_t num_bytes() const;

 private:
  // A row that is to be added: to which one, where it is kept, counted in rows, and with which
  // `add` it came.
  struct Position {
    int64_t row;
    int32_t place;
    int32_t block;
  };

 public:
  // The rows of one part, each once, in the order in which they came. Valid until something is
  // added.
  class Part {
   public:
    const std::vector<int64_t>& numbers() const { return numbers_; }
    int64_t size() const { return static_cast<int64_t>(numbers_.size()); }
    // Writes the sums of [begin, end) of them, behind each other. By any number of threads.
    void write_sums(int64_t begin, int64_t end, float* to) const;

   private:
    friend RowSummands;

    // The next summand of the same sum, -1 for the last. Those that came with one `add` are a
    // block, which is added up before.
    struct Summand {
      const float* row;
      int32_t next;
      int32_t block;
    };

    void begin(int64_t width, size_t count);
    int32_t number_of(int64_t row);
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

  // Returns a tensor (0, width) that stands for these; only `behind` is to be asked of it. Valid as
  // long as they are.
  at::Tensor as_tensor();
  // Returns what such a tensor stands for; null for others.
  static const RowSummands* behind(const at::Tensor& tensor);

 private:
  int64_t width_ = 0;
  std::array<std::vector<Position>, kNumParts> positions_;  // by part
  std::vector<float> kept_;                                 // what lies behind is old
  int64_t num_kept_ = 0;                                    // rows
  int32_t num_blocks_ = 0;
};

}  // namespace poptorch_emu
