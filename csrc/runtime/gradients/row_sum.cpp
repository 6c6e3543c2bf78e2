#include "runtime/gradients/row_sum.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <string>

#include "common/errors.h"
#include "runtime/memory/engine_memory.h"

#pragma GCC push_options
#pragma GCC optimize("O3")

namespace poptorch_emu {
namespace {

// Summands with less memory in total are kept until the window ends, however many a row has.
constexpr int64_t kFewBytes = int64_t{1} << 23;

// Throws `Error` unless the rows can be added to the rows named by `places`.
void check(const at::Tensor& rows, const at::Tensor& places, int64_t num_rows) {
  const int64_t width = rows.size(-1);
  if (rows.numel() != places.numel() * width) {
    throw Error("A gradient of rows has " + std::to_string(rows.numel()) + " numbers, but its " +
                std::to_string(places.numel()) + " indices need " + std::to_string(width) +
                " numbers each.");
  }
  const auto* const place = places.const_data_ptr<int64_t>();
  const auto* const end = place + places.numel();
  const auto* const wrong =
      std::find_if(place, end, [num_rows](int64_t row) { return row < 0 || row >= num_rows; });
  if (wrong != end) {
    throw Error("A gradient belongs to row " + std::to_string(*wrong) + " of a weight with " +
                std::to_string(num_rows) + " rows.");
  }
}

}  // namespace

bool RowSum::fit(int64_t num_summands, const at::Tensor& rows, const at::Tensor& indices) {
  return RowSummands::num_bytes(rows, indices) <= kFewBytes / num_summands;
}

void RowSum::add_any(int64_t index, const at::Tensor& rows, const at::Tensor& indices,
                     int64_t num_rows, int64_t padding_index) {
  const at::Tensor values = readable_rows(rows), places = readable_indices(indices);
  check(values, places, num_rows);
  summands_.fill(index, values, places, padding_index);
  num_rows_ = num_rows;
}

void RowSum::add(const at::Tensor& rows, const at::Tensor& indices, int64_t num_rows,
                 int64_t padding_index) {
  summands_.expect(num_blocks_ + 1);
  add_any(num_blocks_, rows, indices, num_rows, padding_index);
  ++num_blocks_;
  has_rows_ = has_sums_ = false;
  num_bytes_ += RowSummands::num_bytes(rows, indices);
  if (num_bytes_ > std::max(kFewBytes, most_bytes_)) fold();
}

at::Tensor RowSum::readable_rows(const at::Tensor& rows) {
  return rows.size(-1) > 1 && rows.stride(-1) != 1 ? rows.contiguous() : rows.resolve_neg();
}

at::Tensor RowSum::readable_indices(const at::Tensor& indices) {
  return indices.to(at::kLong).contiguous();
}

void RowSum::find_rows() {
  if (has_rows_) return;
  for (int64_t part = 0; part < RowSummands::kNumParts; ++part) summands_.find(part, parts_[part]);
  has_rows_ = true;
}

// Replaces the summands by their sums.
void RowSum::fold() {
  const at::Tensor sums = values();
  std::vector<int64_t> numbers(sums.size(0));
  write_numbers(numbers.data());
  const at::Tensor indices = at::from_blob(numbers.data(), {sums.size(0)}, at::kLong);
  summands_.clear();
  summands_.fill(0, sums, indices, /*padding_index=*/-1);
  num_blocks_ = 1;
  has_rows_ = has_sums_ = false;
  num_bytes_ = RowSummands::num_bytes(sums, indices);
  most_bytes_ = 2 * num_bytes_;
}

int64_t RowSum::num_sums() {
  find_rows();
  int64_t count = 0;
  for (const RowSummands::Part& part : parts_) count += part.size();
  return count;
}

void RowSum::write_numbers(int64_t* to) const {
  for (const RowSummands::Part& part : parts_) {
    to = std::copy(part.numbers().begin(), part.numbers().end(), to);
  }
}

at::Tensor RowSum::indices() {
  at::Tensor indices = at::empty({num_sums()}, at::kLong);
  write_numbers(indices.mutable_data_ptr<int64_t>());
  return indices;
}

at::Tensor RowSum::values() {
  const int64_t count = num_sums(), width = summands_.width();
  if (!has_sums_) {
    sums_.resize(count * width);
    float* to = sums_.data();
    for (const RowSummands::Part& part : parts_) {
      part.write_sums(0, part.size(), to);
      to += part.size() * width;
    }
    has_sums_ = true;
  }
  return at::from_blob(sums_.data(), {count, width}, at::kFloat);
}

void RowSum::add_to(const at::Tensor& matrix) {
  find_rows();
  const int64_t width = summands_.width();
  auto* const target = matrix.mutable_data_ptr<float>();
  std::vector<float> row(width);
  for (const RowSummands::Part& part : parts_) {
    for (int64_t i = 0; i < part.size(); ++i) {
      part.write_sums(i, i + 1, row.data());
      float* const sum = target + part.numbers()[i] * width;
      for (int64_t k = 0; k < width; ++k) sum[k] += row[k];
    }
  }
}

at::Tensor RowSum::whole() {
  if (!whole_.defined()) {
    // The matrix outlives the caller, so that its memory must not come from a memory plan.
    const SegmentMemory::Suspension outside;
    whole_ = at::zeros({num_rows_, summands_.width()}, at::kFloat);
  }
  if (is_whole_) return whole_;
  const int64_t width = summands_.width();
  auto* const numbers = whole_.mutable_data_ptr<float>();
  for (int64_t row : rows_of_whole_) std::fill_n(numbers + row * width, width, 0.0F);
  add_to(whole_);
  rows_of_whole_.resize(num_sums());
  write_numbers(rows_of_whole_.data());
  is_whole_ = true;
  return whole_;
}

void RowSum::clear() {
  summands_.clear();
  num_rows_ = num_blocks_ = num_bytes_ = most_bytes_ = 0;
  has_rows_ = has_sums_ = is_whole_ = false;
}

}  // namespace poptorch_emu

#pragma GCC pop_options
