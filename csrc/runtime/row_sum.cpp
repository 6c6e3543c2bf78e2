#include "runtime/row_sum.h"

#include <algorithm>
#include <string>

#include "common/errors.h"

namespace poptorch_emu {
namespace {

void add_row(float* __restrict target, const float* __restrict row, int64_t width) {
  for (int64_t i = 0; i < width; ++i) target[i] += row[i];
}

}  // namespace

void RowSum::add(const at::Tensor& sum, const at::Tensor& rows, const at::Tensor& indices,
                 int64_t padding_index) {
  const int64_t num_rows = sum.size(0);
  const int64_t width = sum.size(1);
  const at::Tensor values = rows.contiguous();
  const at::Tensor places = indices.to(at::kLong).contiguous();
  if (values.numel() != places.numel() * width) {
    throw Error("Rows of " + std::to_string(width) + " numbers are to be added for " +
                std::to_string(places.numel()) + " indices, but there are " +
                std::to_string(values.numel()) + " numbers.");
  }
  is_touched_.resize(num_rows, 0);
  first_.resize(num_rows, -1);
  link_equal(places, num_rows, padding_index);
  const auto* place = places.const_data_ptr<int64_t>();
  const auto* value = values.const_data_ptr<float>();
  auto* total = sum.mutable_data_ptr<float>();
  std::vector<float> of_row(width);
  for (int64_t position = 0; position < places.numel(); ++position) {
    const int64_t row = place[position];
    if (row == padding_index || first_[row] != position) continue;
    const float* added = value + position * width;
    if (next_[position] >= 0) {
      std::copy_n(added, width, of_row.begin());
      for (int64_t other = next_[position]; other >= 0; other = next_[other]) {
        add_row(of_row.data(), value + other * width, width);
      }
      added = of_row.data();
    }
    add_row(total + row * width, added, width);
    first_[row] = -1;
    if (is_touched_[row] == 0) touched_.push_back(row);
    is_touched_[row] = 1;
  }
}

void RowSum::link_equal(const at::Tensor& indices, int64_t num_rows, int64_t padding_index) {
  const auto* place = indices.const_data_ptr<int64_t>();
  const auto* const end = place + indices.numel();
  const auto* const wrong =
      std::find_if(place, end, [num_rows](int64_t row) { return row < 0 || row >= num_rows; });
  if (wrong != end) {
    throw Error("A gradient belongs to row " + std::to_string(*wrong) + " of a weight with " +
                std::to_string(num_rows) + " rows.");
  }
  next_.resize(indices.numel());
  for (int64_t position = indices.numel() - 1; position >= 0; --position) {
    const int64_t row = place[position];
    if (row == padding_index) continue;
    next_[position] = first_[row];
    first_[row] = position;
  }
}

void RowSum::clear(const at::Tensor& sum) {
  const int64_t width = sum.size(1);
  auto* total = sum.mutable_data_ptr<float>();
  for (int64_t row : touched_) std::fill_n(total + row * width, width, 0.0F);
  forget();
}

void RowSum::forget() {
  for (int64_t row : touched_) is_touched_[row] = 0;
  touched_.clear();
}

}  // namespace poptorch_emu
