#include "numerics/row_summands.h"

#include <c10/core/StorageImpl.h>

#include <algorithm>
#include <utility>

#include "common/for_each_cpu.h"

#pragma GCC push_options
#pragma GCC optimize("O3")

namespace poptorch_emu {
namespace {

constexpr int kPartBits = 4;
static_assert(RowSummands::kNumParts == 1 << kPartBits);

// Whose first bits say to which part a row belongs, and the next ones where its sum is looked for.
uint64_t hash_of(int64_t row) { return static_cast<uint64_t>(row) * 0x9E3779B97F4A7C15U; }
int64_t part_of(int64_t row) { return static_cast<int64_t>(hash_of(row) >> (64 - kPartBits)); }

// Where the rows of a tensor with these leading dimensions begin, in their order.
std::vector<int64_t> offsets_of(int64_t begin, at::IntArrayRef sizes, at::IntArrayRef strides) {
  std::vector<int64_t> offsets(1, begin);
  for (size_t dim = 0; dim < sizes.size(); ++dim) {
    std::vector<int64_t> finer;
    finer.reserve(offsets.size() * sizes[dim]);
    for (int64_t offset : offsets) {
      for (int64_t i = 0; i < sizes[dim]; ++i) finer.push_back(offset + i * strides[dim]);
    }
    offsets = std::move(finer);
  }
  return offsets;
}

POPTORCH_EMU_FOR_EACH_CPU void add_row(float* __restrict target, const float* __restrict row,
                                       int64_t width) {
  for (int64_t i = 0; i < width; ++i) target[i] += row[i];
}

// As if it were added to zeros: -0 becomes 0.
POPTORCH_EMU_FOR_EACH_CPU void begin_row(float* __restrict target, const float* __restrict row,
                                         int64_t width) {
  for (int64_t i = 0; i < width; ++i) target[i] = 0.0F + row[i];
}

// Marks the tensors that stand for summands, which they do not own.
void leave(void* /*summands*/) {}

}  // namespace

void RowSummands::add(const at::Tensor& rows, const at::Tensor& indices, int64_t padding_index) {
  width_ = rows.size(-1);
  const int64_t num_dims = rows.dim() - 1;
  const at::IntArrayRef sizes = rows.sizes().slice(0, num_dims);
  const at::IntArrayRef strides = rows.strides().slice(0, num_dims);
  std::vector<int64_t> sizes_once = sizes.vec(), place_strides(num_dims);
  int64_t num_rows = 1;  // without those that an expanded dimension repeats
  for (int64_t dim = num_dims - 1; dim >= 0; --dim) {
    if (strides[dim] == 0 && sizes[dim] > 0) {
      sizes_once[dim] = 1;
    } else {
      place_strides[dim] = num_rows;
      num_rows *= sizes[dim];
    }
  }
  const auto* row = indices.const_data_ptr<int64_t>();
  for (int64_t place : offsets_of(num_kept_, sizes, place_strides)) {
    if (*row != padding_index) {
      positions_[part_of(*row)].push_back({*row, static_cast<int32_t>(place), num_blocks_});
    }
    ++row;
  }
  const auto num_numbers = static_cast<size_t>((num_kept_ + num_rows) * width_);
  if (kept_.size() < num_numbers) kept_.resize(num_numbers);
  const auto* const from = rows.const_data_ptr<float>();
  float* to = kept_.data() + num_kept_ * width_;
  for (int64_t begin : offsets_of(0, sizes_once, strides)) {
    to = std::copy_n(from + begin, width_, to);
  }
  num_kept_ += num_rows;
  ++num_blocks_;
}

void RowSummands::clear() {
  for (std::vector<Position>& part : positions_) part.clear();
  num_kept_ = num_blocks_ = 0;
}

int64_t RowSummands::count() const {
  size_t count = 0;
  for (const std::vector<Position>& part : positions_) count += part.size();
  return static_cast<int64_t>(count);
}

int64_t RowSummands::num_bytes() const {
  return count() * static_cast<int64_t>(sizeof(Position)) +
         num_kept_ * width_ * static_cast<int64_t>(sizeof(float));
}

void RowSummands::find(int64_t part, Part& found) const {
  const std::vector<Position>& positions = positions_[part];
  found.begin(width_, positions.size());
  auto* const summands = found.summands_.data();
  for (size_t i = 0; i < positions.size(); ++i) {
    const auto& [row, place, block] = positions[i];
    const auto summand = static_cast<int32_t>(i);
    summands[i] = {kept_.data() + place * width_, -1, block};
    const int32_t number = found.number_of(row);
    const int32_t last = std::exchange(found.last_[number], summand);
    (last < 0 ? found.first_[number] : summands[last].next) = summand;
  }
}

void RowSummands::Part::begin(int64_t width, size_t count) {
  width_ = width;
  numbers_.clear();
  numbers_.reserve(count);
  first_.resize(count);
  last_.assign(count, -1);
  summands_.resize(count);
  // At most a quarter full, so that few look for theirs twice.
  for (table_bits_ = 2; (size_t{1} << table_bits_) < 4 * count; ++table_bits_) continue;
  table_.assign(size_t{1} << table_bits_, -1);
}

int32_t RowSummands::Part::number_of(int64_t row) {
  const size_t mask = table_.size() - 1;
  size_t entry = hash_of(row) >> (64 - kPartBits - table_bits_) & mask;
  for (; table_[entry] >= 0; entry = (entry + 1) & mask) {
    if (numbers_[table_[entry]] == row) return table_[entry];
  }
  numbers_.push_back(row);
  return table_[entry] = static_cast<int32_t>(numbers_.size()) - 1;
}

void RowSummands::Part::write_sums(int64_t begin, int64_t end, float* to) const {
  for (int64_t number = begin; number < end; ++number, to += width_) {
    int32_t summand = first_[number];
    begin_row(to, next_block(summand), width_);
    while (summand >= 0) add_row(to, next_block(summand), width_);
  }
}

// Returns the sum of the block that begins with a summand, which becomes the one behind it. Valid
// until the next call of the thread.
const float* RowSummands::Part::next_block(int32_t& summand) const {
  const auto& [row, next, block] = summands_[summand];
  summand = next;
  if (next < 0 || summands_[next].block != block) return row;
  thread_local std::vector<float> sum;
  sum.assign(row, row + width_);
  for (; summand >= 0 && summands_[summand].block == block; summand = summands_[summand].next)
    add_row(sum.data(), summands_[summand].row, width_);
  return sum.data();
}

at::Tensor RowSummands::as_tensor() {
  at::DataPtr memory(this, this, &leave, at::kCPU);
  at::Storage storage(at::Storage::use_byte_size_t(), 0, std::move(memory));
  at::Tensor tensor = at::detail::make_tensor<at::TensorImpl>(
      std::move(storage), at::DispatchKeySet(at::DispatchKey::CPU),
      at::scalarTypeToTypeMeta(at::kFloat));
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous({0, width_});
  return tensor;
}

const RowSummands* RowSummands::behind(const at::Tensor& tensor) {
  if (!tensor.has_storage()) return nullptr;
  return tensor.storage().data_ptr().cast_context<RowSummands>(&leave);
}

}  // namespace poptorch_emu

#pragma GCC pop_options
