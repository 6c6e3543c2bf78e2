#include "runtime/row_sum.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <string>
#include <utility>

#include "common/errors.h"
#include "common/prefetch.h"
#include "runtime/segment_memory.h"

#pragma GCC push_options
#pragma GCC optimize("O3")

namespace poptorch_emu {
namespace {

// How many positions before its turn a slot is fetched; those of single rows lie anywhere.
constexpr int64_t kSlotsAhead = 16;

void add_row(float* __restrict target, const float* __restrict row, int64_t width) {
  for (int64_t i = 0; i < width; ++i) target[i] += row[i];
}

// As if it were added to zeros: -0 becomes 0.
void begin_row(float* __restrict target, const float* __restrict row, int64_t width) {
  for (int64_t i = 0; i < width; ++i) target[i] = 0.0F + row[i];
}

}  // namespace

void RowSum::add(const at::Tensor& rows, const at::Tensor& indices, int64_t num_rows,
                 int64_t padding_index) {
  const int64_t width = rows.size(-1);
  const at::Tensor values = readable_rows(rows), places = readable_indices(indices);
  if (values.numel() != places.numel() * width) {
    throw Error("Rows of " + std::to_string(width) + " numbers are to be added for " +
                std::to_string(places.numel()) + " indices, but there are " +
                std::to_string(values.numel()) + " numbers.");
  }
  const auto* const place = places.const_data_ptr<int64_t>();
  const auto* const end = place + places.numel();
  const auto* const wrong =
      std::find_if(place, end, [num_rows](int64_t row) { return row < 0 || row >= num_rows; });
  if (wrong != end) {
    throw Error("A gradient belongs to row " + std::to_string(*wrong) + " of a weight with " +
                std::to_string(num_rows) + " rows.");
  }
  if (!is_begun()) forget();
  num_rows_ = num_rows;
  width_ = width;
  const auto num_old_slots = static_cast<int64_t>(indices_.size());
  find_rows(values);
  find_slots(places, padding_index);
  link_equal();
  add_linked(values.const_data_ptr<float>(), num_old_slots);
}

at::Tensor RowSum::readable_rows(const at::Tensor& rows) {
  return rows.size(-1) > 1 && rows.stride(-1) != 1 ? rows.contiguous() : rows.resolve_neg();
}

at::Tensor RowSum::readable_indices(const at::Tensor& indices) {
  return indices.to(at::kLong).contiguous();
}

void RowSum::find_rows(const at::Tensor& rows) {
  begin_of_.assign(1, 0);
  for (int64_t dim = 0; dim + 1 < rows.dim(); ++dim) {
    std::vector<int64_t> begins;
    begins.reserve(begin_of_.size() * rows.size(dim));
    for (int64_t begin : begin_of_) {
      for (int64_t i = 0; i < rows.size(dim); ++i) begins.push_back(begin + i * rows.stride(dim));
    }
    begin_of_ = std::move(begins);
  }
}

void RowSum::find_slots(const at::Tensor& indices, int64_t padding_index) {
  slot_.resize(num_rows_, -1);
  slot_of_.resize(indices.numel());
  const auto* const place = indices.const_data_ptr<int64_t>();
  const int64_t count = indices.numel();
  for (int64_t position = 0; position < count; ++position) {
    if (position + kSlotsAhead < count) prefetch(&slot_[place[position + kSlotsAhead]], 1);
    const int64_t row = place[position];
    int32_t& slot = slot_[row];
    if (slot < 0 && row != padding_index) {
      slot = static_cast<int32_t>(indices_.size());
      indices_.push_back(row);
    }
    slot_of_[position] = slot;
  }
  const size_t num_values = indices_.size() * static_cast<size_t>(width_);
  if (values_.size() < num_values) values_.resize(num_values);
}

void RowSum::link_equal() {
  first_.resize(indices_.size(), -1);
  next_.resize(slot_of_.size());
  for (int64_t position = static_cast<int64_t>(slot_of_.size()) - 1; position >= 0; --position) {
    const int32_t slot = slot_of_[position];
    if (slot >= 0) next_[position] = std::exchange(first_[slot], position);
  }
}

void RowSum::add_linked(const float* values, int64_t num_old_slots) {
  std::vector<float> of_slot(width_);
  for (int64_t position = 0; position < static_cast<int64_t>(slot_of_.size()); ++position) {
    const int32_t slot = slot_of_[position];
    if (slot < 0 || first_[slot] != position) continue;
    const float* added = values + begin_of_[position];
    if (next_[position] >= 0) {
      std::copy_n(added, width_, of_slot.begin());
      for (int64_t other = next_[position]; other >= 0; other = next_[other]) {
        add_row(of_slot.data(), values + begin_of_[other], width_);
      }
      added = of_slot.data();
    }
    float* const sum = values_.data() + slot * width_;
    slot < num_old_slots ? add_row(sum, added, width_) : begin_row(sum, added, width_);
    first_[slot] = -1;
  }
}

at::Tensor RowSum::indices() const {
  at::Tensor indices =
      at::empty({static_cast<int64_t>(indices_.size())}, at::TensorOptions(at::kLong));
  std::copy(indices_.begin(), indices_.end(), indices.mutable_data_ptr<int64_t>());
  return indices;
}

at::Tensor RowSum::values() {
  return at::from_blob(values_.data(), {static_cast<int64_t>(indices_.size()), width_}, at::kFloat);
}

void RowSum::add_to(const at::Tensor& matrix) const {
  auto* const target = matrix.mutable_data_ptr<float>();
  const float* row = values_.data();
  for (int64_t index : indices_) {
    add_row(target + index * width_, row, width_);
    row += width_;
  }
}

at::Tensor RowSum::whole() {
  if (!whole_.defined()) {
    // It lives longer than what asks for it: no plan of the engine has it.
    const SegmentMemory::Suspension outside;
    whole_ = at::zeros({num_rows_, width_}, at::kFloat);
  }
  if (!is_whole_) add_to(whole_);
  is_whole_ = true;
  return whole_;
}

void RowSum::forget() {
  for (int64_t index : indices_) slot_[index] = -1;
  if (is_whole_) {
    auto* const whole = whole_.mutable_data_ptr<float>();
    for (int64_t index : indices_) std::fill_n(whole + index * width_, width_, 0.0F);
  }
  is_whole_ = false;
  indices_.clear();
}

}  // namespace poptorch_emu

#pragma GCC pop_options
