#include "numerics/row_copies.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>

#include "common/prefetch.h"
#include "common/sharing.h"

namespace poptorch_emu {
namespace {

// Minimum size of one part of a copy in bytes; and the distance of prefetches in rows, which are
// needed because the processor cannot predict the positions of single rows.
constexpr int64_t kBytesOfPart = int64_t{1} << 17;
constexpr int64_t kRowsAhead = 8;

// Calls `copy(place, row)` for each of `rows`, with its index in `rows` and its memory.
template <class Copy>
void for_each_row(char* matrix, int64_t row_bytes, const at::Tensor& rows, const Copy& copy) {
  const auto* const row = rows.const_data_ptr<int64_t>();
  const int64_t per_part = std::max<int64_t>(1, kBytesOfPart / std::max<int64_t>(1, row_bytes));
  share_out(rows.numel(), per_part, [&](int64_t begin, int64_t end) {
    for (int64_t place = begin; place < end; ++place) {
      if (place + kRowsAhead < end) {
        prefetch(matrix + row[place + kRowsAhead] * row_bytes, row_bytes);
      }
      copy(place, matrix + row[place] * row_bytes);
    }
  });
}

int64_t row_bytes_of(const at::Tensor& matrix) {
  return matrix.size(1) * static_cast<int64_t>(matrix.element_size());
}

}  // namespace

at::Tensor gather_rows(const at::Tensor& matrix, const at::Tensor& rows) {
  at::Tensor values = at::empty({rows.numel(), matrix.size(1)}, matrix.options());
  auto* const to = static_cast<char*>(values.mutable_data_ptr());
  auto* const from = static_cast<char*>(const_cast<void*>(matrix.const_data_ptr()));
  const int64_t row_bytes = row_bytes_of(matrix);
  for_each_row(from, row_bytes, rows, [&](int64_t place, const char* row) {
    std::memcpy(to + place * row_bytes, row, row_bytes);
  });
  return values;
}

void scatter_rows(const at::Tensor& matrix, const at::Tensor& rows, const at::Tensor& values) {
  const auto* const from = static_cast<const char*>(values.const_data_ptr());
  const int64_t row_bytes = row_bytes_of(matrix);
  for_each_row(
      static_cast<char*>(matrix.mutable_data_ptr()), row_bytes, rows,
      [&](int64_t place, char* row) { std::memcpy(row, from + place * row_bytes, row_bytes); });
}

}  // namespace poptorch_emu
