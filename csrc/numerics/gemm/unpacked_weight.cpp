#include "numerics/gemm/unpacked_weight.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <mutex>

#include "common/errors.h"
#include "numerics/gemm/packed_weight.h"
#include "numerics/gemm/panel_product.h"

namespace poptorch_emu {
namespace {

// Integers up to it are exact in float32.
constexpr int64_t kMostNumbers = int64_t{1} << 24;
// Sizes from which on those of a trial stay the same.
constexpr int64_t kLargestTrial = 1031;

// A matrix that has everywhere the number of the row, from 1 on, or that of the column, below 0.
at::Tensor numbers_of_rows(int64_t rows, int64_t columns) {
  return at::arange(1, rows + 1, at::kFloat).unsqueeze(1).repeat({1, columns});
}
at::Tensor numbers_of_columns(int64_t rows, int64_t columns) {
  return at::arange(-1, -columns - 1, -1, at::kFloat).repeat({rows, 1});
}

// Puts what the library has packed in its place; returns how many numbers were found. Only those
// that it writes change their sign from the first matrix to the second. What is packed has its
// values again afterwards: nothing can fail meanwhile, since all memory is there before.
int64_t put_in_place(at::Tensor& packed, int64_t rows, at::Tensor& weight) {
  const int64_t num_outputs = weight.size(0), num_inputs = weight.size(1);
  const at::Tensor values = packed.clone(), row_numbers = at::empty_like(packed);
  const at::Tensor of_rows = numbers_of_rows(num_outputs, num_inputs);
  const at::Tensor of_columns = numbers_of_columns(num_outputs, num_inputs);
  const auto copy = [](const at::Tensor& from, const at::Tensor& to) {
    std::memcpy(to.mutable_data_ptr(), from.const_data_ptr(), from.nbytes());
  };
  pack_weight_again(of_rows, rows, packed);
  copy(packed, row_numbers);
  pack_weight_again(of_columns, rows, packed);
  const float *row = row_numbers.const_data_ptr<float>(), *column = packed.const_data_ptr<float>();
  const float* const from = values.const_data_ptr<float>();
  float* const to = weight.mutable_data_ptr<float>();
  int64_t num_found = 0;
  for (int64_t i = 0; i < packed.numel(); ++i) {
    if (!(row[i] > 0.0f && column[i] < 0.0f)) continue;
    const auto row_number = static_cast<int64_t>(row[i]) - 1;
    const auto column_number = static_cast<int64_t>(-column[i]) - 1;
    std::memcpy(to + row_number * num_inputs + column_number, from + i, sizeof(float));
    ++num_found;
  }
  copy(values, packed);
  return num_found;
}

// Numbers of all kinds but signalling NaNs, those of which the bits are easily lost first.
at::Tensor numbers_to_try(int64_t rows, int64_t columns) {
  constexpr std::array<uint32_t, 5> kSpecial = {0x80000000, 0x00000001, 0x807fffff, 0xff800000,
                                                0x7fc12345};
  constexpr uint32_t kMix = 2654435761u, kLessThanTwo = 0xbfffffff;
  at::Tensor numbers = at::empty({rows, columns}, at::kFloat);
  auto* const to = numbers.mutable_data_ptr<float>();
  for (uint32_t i = 0; i < numbers.numel(); ++i) {
    const uint32_t bits = i < kSpecial.size() ? kSpecial[i] : i * kMix & kLessThanTwo;
    std::memcpy(to + i, &bits, sizeof(float));
  }
  return numbers;
}

// Returns whether all of the weight was found. What is packed stays as it is.
bool unpack(at::Tensor& packed, int64_t rows, at::Tensor& weight) {
  if (packed.dim() == 1) {
    return put_in_place(packed, rows, weight) == weight.numel();
  }
  if (packed.dim() == 3) {
    for (int64_t panel = 0; panel < packed.size(0); ++panel) {
      const int64_t first = panels::first_column(panel, weight.size(0));
      const int64_t width = panels::width_of(panel, weight.size(0));
      weight.narrow(0, first, width).copy_(packed.select(0, panel).narrow(1, 0, width).t());
    }
    return true;
  }
  weight.copy_(packed.narrow(1, 0, weight.size(0)).t());
  return true;
}

bool is_unpacked_exactly(int64_t rows, int64_t num_outputs, int64_t num_inputs) {
  const at::Tensor weight = numbers_to_try(num_outputs, num_inputs);
  at::Tensor packed = pack_weight(weight, rows);
  at::Tensor found = at::empty_like(weight);
  return unpack(packed, rows, found) &&
         std::memcmp(found.const_data_ptr(), weight.const_data_ptr(), weight.nbytes()) == 0;
}

}  // namespace

at::Tensor unpack_weight(at::Tensor& packed, int64_t rows, int64_t num_outputs,
                         int64_t num_inputs) {
  at::Tensor weight = at::empty({num_outputs, num_inputs}, packed.options());
  if (!unpack(packed, rows, weight)) {
    throw Error("A packed weight of " + std::to_string(num_outputs) + " x " +
                std::to_string(num_inputs) + " numbers could not be unpacked.");
  }
  return weight;
}

bool can_unpack(int64_t rows, int64_t num_outputs, int64_t num_inputs) {
  const bool is_by_panels = panels::is_faster(rows, num_inputs, num_outputs);
  if (is_by_panels || is_small_layer(rows, num_inputs, num_outputs)) return true;
  if (std::max(num_outputs, num_inputs) >= kMostNumbers) return false;
  static std::mutex mutex;
  static std::map<std::array<int64_t, 3>, bool> tried;
  std::array<int64_t, 3> sizes = {rows, std::min(num_outputs, kLargestTrial),
                                  std::min(num_inputs, kLargestTrial)};
  // Another kernel would have another order.
  if (is_small_layer(rows, sizes[2], sizes[1])) sizes = {rows, num_outputs, num_inputs};
  const std::lock_guard lock(mutex);
  const auto [entry, is_new] = tried.try_emplace(sizes, false);
  if (is_new) entry->second = is_unpacked_exactly(sizes[0], sizes[1], sizes[2]);
  return entry->second;
}

}  // namespace poptorch_emu
