#pragma once

#include <cstdint>

#include "common/vectors.h"

namespace poptorch_emu {

// Number of rows of a tile with 32 columns for which the sums fit in the registers.
template <class Width>
constexpr int64_t kRowsAtOnce = vectors::Registers<Width>::kLanes == 16 ? 8 : 3;

// A tile of a product whose sums stay in registers during the computation. Each sum is added up in
// the order of the depth, whatever the tile's size.
template <class Width, int64_t kRows, int64_t kColumns>
class RegisterTile {
  using Registers = vectors::Registers<Width>;
  using Vector = typename Registers::Vector;
  static constexpr int64_t kVectors = kColumns / Registers::kLanes;
  static_assert(kColumns % Registers::kLanes == 0);

 public:
  // Adds the products of `depth` columns of the left matrix, read as `left(row, k)`, and as many
  // rows of the right matrix, with a stride of `stride`.
  template <class Left>
  POPTORCH_EMU_INLINE void add(int64_t depth, const Left& left, const float* right,
                               int64_t stride) {
    for (int64_t k = 0; k < depth; ++k, right += stride) add_one(k, left, right);
  }
  // Same as `add` for a large depth; the loop is unrolled.
  template <class Left>
  POPTORCH_EMU_INLINE void add_many(int64_t depth, const Left& left, const float* right,
                                    int64_t stride) {
#pragma GCC unroll 4
    for (int64_t k = 0; k < depth; ++k, right += stride) add_one(k, left, right);
  }

  // Writes a row of sums; `write_added` writes its sum with `start`.
  POPTORCH_EMU_INLINE void write(int64_t row, float* to) const {
#pragma GCC unroll 8
    for (int64_t v = 0; v < kVectors; ++v)
      Registers::at(to + v * Registers::kLanes) = sums_[row][v];
  }
  POPTORCH_EMU_INLINE void write_added(int64_t row, const float* start, float* to) const {
#pragma GCC unroll 8
    for (int64_t v = 0; v < kVectors; ++v) {
      const int64_t at = v * Registers::kLanes;
      Registers::at(to + at) = Registers::at(start + at) + sums_[row][v];
    }
  }

 private:
  template <class Left>
  POPTORCH_EMU_INLINE void add_one(int64_t k, const Left& left, const float* right) {
    // Keep the smaller operand in registers, together with the sums.
    if constexpr (kVectors < kRows) {
      Vector row_of_right[kVectors];
#pragma GCC unroll 8
      for (int64_t v = 0; v < kVectors; ++v)
        row_of_right[v] = Registers::at(right + v * Registers::kLanes);
#pragma GCC unroll 8
      for (int64_t row = 0; row < kRows; ++row) {
#pragma GCC unroll 8
        for (int64_t v = 0; v < kVectors; ++v) sums_[row][v] += left(row, k) * row_of_right[v];
      }
    } else {
      float column_of_left[kRows];
#pragma GCC unroll 8
      for (int64_t row = 0; row < kRows; ++row) column_of_left[row] = left(row, k);
#pragma GCC unroll 8
      for (int64_t v = 0; v < kVectors; ++v) {
        const Vector part_of_right = Registers::at(right + v * Registers::kLanes);
#pragma GCC unroll 8
        for (int64_t row = 0; row < kRows; ++row)
          sums_[row][v] += column_of_left[row] * part_of_right;
      }
    }
  }

  Vector sums_[kRows][kVectors] = {};
};

}  // namespace poptorch_emu
