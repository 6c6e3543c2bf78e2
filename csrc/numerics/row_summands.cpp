#include "numerics/row_summands.h"

#include <algorithm>
#include <array>
#include <utility>

#include "common/for_each_cpu.h"

#pragma GCC push_options
#pragma GCC optimize("O3")

namespace poptorch_emu {
namespace {

constexpr int kPartBits = 4;
static_assert(RowSummands::kNumParts == 1 << kPartBits);

// Returns the hash of a row. Its first bits select the part, the next bits an entry of the table.
uint64_t hash_of(int64_t row) { return static_cast<uint64_t>(row) * 0x9E3779B97F4A7C15U; }
int64_t part_of(int64_t row) { return static_cast<int64_t>(hash_of(row) >> (64 - kPartBits)); }

// Returns the offset of each row of a tensor with these leading dimensions, in order.
std::vector<int64_t> offsets_of(at::IntArrayRef sizes, at::IntArrayRef strides) {
  std::vector<int64_t> offsets(1, 0);
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

// Same as `add_row` for float16 rows, whose sums are rounded to float16.
POPTORCH_EMU_FOR_EACH_CPU void add_half_row(float* __restrict target, const float* __restrict row,
                                            int64_t width) {
  for (int64_t i = 0; i < width; ++i) target[i] = c10::Half(target[i] + row[i]);
}

// Begins a sum with the bits of an addition to zero; for example, -0 becomes 0.
POPTORCH_EMU_FOR_EACH_CPU void begin_row(float* __restrict target, const float* __restrict row,
                                         int64_t width) {
  for (int64_t i = 0; i < width; ++i) target[i] = 0.0F + row[i];
}

// Returns rows in float32. Expanded rows are converted once; `sizes_once` holds the leading sizes
// without expansion.
at::Tensor as_float(const at::Tensor& rows, at::IntArrayRef sizes_once) {
  if (rows.scalar_type() == at::kFloat) return rows;
  std::vector<int64_t> sizes = sizes_once.vec();
  sizes.push_back(rows.size(-1));
  return rows.as_strided(sizes, rows.strides()).to(at::kFloat);
}

}  // namespace

// One block of summands, aligned to cache lines, because several cores fill blocks in parallel.
struct alignas(64) RowSummands::Block {
  // The row to which a summand is added, and the summand's position in `kept`, counted in rows.
  struct Position {
    int64_t row;
    int64_t place;
  };

  int64_t generation = -1;  // value of `generation_` when the block was filled
  std::array<std::vector<Position>, kNumParts> positions;
  std::vector<float> kept;  // summands; rows after `num_kept` are old
  int64_t num_kept = 0;     // numbers in use
  bool is_half = false;
};

RowSummands::RowSummands() = default;
RowSummands::~RowSummands() = default;

// Calls `use` with the index and the block for each block filled since the last `clear`.
template <class Use>
void RowSummands::for_each_filled(const Use& use) const {
  for (size_t i = 0; i < blocks_.size(); ++i) {
    if (blocks_[i] && blocks_[i]->generation == generation_) use(i, *blocks_[i]);
  }
}

void RowSummands::expect(int64_t num_blocks) {
  if (static_cast<int64_t>(blocks_.size()) < num_blocks) blocks_.resize(num_blocks);
}

void RowSummands::fill(int64_t block, const at::Tensor& rows, const at::Tensor& indices,
                       int64_t padding_index) {
  if (!blocks_[block]) blocks_[block] = std::make_unique<Block>();
  auto& [generation, positions, kept, num_kept, is_half] = *blocks_[block];
  const int64_t width = rows.size(-1), num_dims = rows.dim() - 1;
  const at::IntArrayRef sizes = rows.sizes().slice(0, num_dims);
  const at::IntArrayRef strides = rows.strides().slice(0, num_dims);
  // Leading sizes in which expanded dimensions count as 1, and strides of the kept rows.
  std::vector<int64_t> sizes_once = sizes.vec(), place_strides(num_dims);
  int64_t num_rows = 1;
  for (int64_t dim = num_dims - 1; dim >= 0; --dim) {
    if (strides[dim] == 0 && sizes[dim] > 0) {
      sizes_once[dim] = 1;
    } else {
      place_strides[dim] = num_rows;
      num_rows *= sizes[dim];
    }
  }
  for (std::vector<Block::Position>& part : positions) part.clear();
  const auto* row = indices.const_data_ptr<int64_t>();
  for (int64_t place : offsets_of(sizes, place_strides)) {
    if (*row != padding_index) positions[part_of(*row)].push_back({*row, place});
    ++row;
  }
  num_kept = num_rows * width;
  if (static_cast<int64_t>(kept.size()) < num_kept) kept.resize(num_kept);
  const at::Tensor wide = as_float(rows, sizes_once);
  const auto* const from = wide.const_data_ptr<float>();
  float* to = kept.data();
  for (int64_t begin : offsets_of(sizes_once, wide.strides().slice(0, num_dims))) {
    to = std::copy_n(from + begin, width, to);
  }
  is_half = rows.scalar_type() == at::kHalf;
  width_ = width;
  generation = generation_;
}

int64_t RowSummands::count() const {
  size_t count = 0;
  for_each_filled([&](size_t, const Block& block) {
    for (const std::vector<Block::Position>& part : block.positions) count += part.size();
  });
  return static_cast<int64_t>(count);
}

int64_t RowSummands::num_bytes(const at::Tensor& rows, const at::Tensor& indices) {
  int64_t num_kept = rows.numel();
  for (int64_t dim = 0; dim + 1 < rows.dim() && num_kept > 0; ++dim) {
    if (rows.stride(dim) == 0) num_kept /= rows.size(dim);
  }
  return static_cast<int64_t>(sizeof(Block)) +
         indices.numel() * static_cast<int64_t>(sizeof(Block::Position)) +
         num_kept * static_cast<int64_t>(sizeof(float));
}

void RowSummands::find(int64_t part, Part& found) const {
  size_t count = 0;
  for_each_filled([&](size_t, const Block& block) { count += block.positions[part].size(); });
  found.begin(width_, count);
  for_each_filled([&](size_t number, const Block& block) {
    const auto code = static_cast<int32_t>(2 * number + (block.is_half ? 1 : 0));
    for (const auto& [row, place] : block.positions[part]) {
      found.add(row, block.kept.data() + place * found.width_, code);
    }
  });
}

void RowSummands::Part::begin(int64_t width, size_t count) {
  width_ = width;
  numbers_.clear();
  first_.clear();
  last_.clear();
  summands_.clear();
  // The table is at most a quarter full, so that collisions are rare.
  for (table_bits_ = 2; (size_t{1} << table_bits_) < 4 * count; ++table_bits_) continue;
  table_.assign(size_t{1} << table_bits_, -1);
}

void RowSummands::Part::add(int64_t row, const float* summand, int32_t block) {
  const auto added = static_cast<int32_t>(summands_.size());
  summands_.push_back({summand, -1, block});
  const size_t mask = table_.size() - 1;
  size_t entry = hash_of(row) >> (64 - kPartBits - table_bits_) & mask;
  for (; table_[entry] >= 0; entry = (entry + 1) & mask) {
    const int32_t number = table_[entry];
    if (numbers_[number] != row) continue;
    summands_[std::exchange(last_[number], added)].next = added;
    return;
  }
  table_[entry] = static_cast<int32_t>(numbers_.size());
  numbers_.push_back(row);
  first_.push_back(added);
  last_.push_back(added);
}

void RowSummands::Part::write_sums(int64_t begin, int64_t end, float* to) const {
  for (int64_t number = begin; number < end; ++number, to += width_) {
    int32_t summand = first_[number];
    begin_row(to, next_block(summand), width_);
    while (summand >= 0) add_row(to, next_block(summand), width_);
  }
}

// Returns the sum of the block that begins with `summand`, and moves `summand` behind it. Valid
// until the thread's next call.
const float* RowSummands::Part::next_block(int32_t& summand) const {
  const auto& [row, next, block] = summands_[summand];
  summand = next;
  if (next < 0 || summands_[next].block != block) return row;
  const auto add = block % 2 != 0 ? add_half_row : add_row;
  thread_local std::vector<float> sum;
  sum.assign(row, row + width_);
  for (; summand >= 0 && summands_[summand].block == block; summand = summands_[summand].next)
    add(sum.data(), summands_[summand].row, width_);
  return sum.data();
}

}  // namespace poptorch_emu

#pragma GCC pop_options
