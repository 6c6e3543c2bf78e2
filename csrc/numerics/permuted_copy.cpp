// Copies of tensors with permuted dimensions.
//
// If neighbours in the result are far apart in the source, PyTorch's copies read or write a whole
// cache line for each element, except for transposed matrices. The copies here work in tiles, so
// that they use whole cache lines of both source and result.

#include "numerics/permuted_copy.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <utility>

namespace poptorch_emu {
namespace {

// A dimension of the result: its size, and the strides in elements in source and target.
struct Dim {
  int64_t size;
  int64_t source;
  int64_t target;
};

using Dims = c10::SmallVector<Dim, 6>;

// Below this number of elements a second thread costs more time than it saves.
constexpr int64_t kFewestElements = 32768;

// Size of a tile, which fits in the first-level cache: along rows of the result and across them.
template <typename T>
constexpr int64_t kRows = std::min<int64_t>(128, 512 / sizeof(T));
template <typename T>
constexpr int64_t kColumns = std::min<int64_t>(64, 256 / sizeof(T));
template <typename T>
constexpr int64_t kTile = kRows<T> * kColumns<T>;

// Returns the dimensions without those of length 1, merging those adjacent in both tensors.
Dims merged(at::IntArrayRef sizes, at::IntArrayRef strides) {
  Dims dims;
  int64_t target = 1;
  for (int64_t i = static_cast<int64_t>(sizes.size()) - 1; i >= 0; --i) {
    if (sizes[i] == 1) continue;
    if (!dims.empty() && strides[i] == dims.back().source * dims.back().size) {
      dims.back().size *= sizes[i];
    } else {
      dims.push_back({sizes[i], strides[i], target});
    }
    target *= sizes[i];
  }
  return dims;
}

// A vector of 16 bytes, which every processor supports.
template <typename T>
struct Vector {
  T lanes [[gnu::vector_size(16)]];
};
template <typename T>
constexpr int64_t kLanes = 16 / sizeof(T);

// Interleaves the elements of a and b, and returns the lower or upper half of the result.
template <typename T, bool kUpper>
Vector<T> interleaved(Vector<T> a, Vector<T> b) {
  return [&]<size_t... kLane>(std::index_sequence<kLane...>) {
    constexpr size_t kFirst = kUpper ? kLanes<T> / 2 : 0;
    return Vector<T>{
        __builtin_shufflevector(a.lanes, b.lanes, (kFirst + kLane / 2 + kLane % 2 * kLanes<T>)...)};
  }(std::make_index_sequence<kLanes<T>>());
}

// Writes the transpose of the square at `source`, whose width is one vector.
template <typename T>
void transpose_square(const T* source, int64_t source_step, T* target, int64_t target_step) {
  constexpr int64_t n = kLanes<T>;
  std::array<Vector<T>, n> rows, mixed;
  for (int64_t i = 0; i < n; ++i) std::memcpy(&rows[i], source + i * source_step, 16);
  for (int64_t width = 1; width < n; width *= 2) {
    for (int64_t i = 0; i < n / 2; ++i) {
      mixed[2 * i] = interleaved<T, false>(rows[i], rows[i + n / 2]);
      mixed[2 * i + 1] = interleaved<T, true>(rows[i], rows[i + n / 2]);
    }
    rows = mixed;
  }
  for (int64_t i = 0; i < n; ++i) std::memcpy(target + i * target_step, &rows[i], 16);
}

// Copies element by element: result (c, r) is source (r, c).
template <typename T>
void copy_each(const T* source, T* target, int64_t source_step, int64_t target_step,
               int64_t columns, int64_t rows) {
  if (rows < columns) {
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < columns; ++c)
        target[c * target_step + r] = source[r * source_step + c];
    }
    return;
  }
  for (int64_t c = 0; c < columns; ++c) {
    for (int64_t r = 0; r < rows; ++r) target[c * target_step + r] = source[r * source_step + c];
  }
}

// Copies through a buffer, because lines with the same offset in many pages evict each other.
template <typename T>
void copy_tile(const T* source, T* target, int64_t source_step, int64_t target_step,
               int64_t columns, int64_t rows) {
  constexpr int64_t n = kLanes<T>;
  if (columns < n || rows < n) {
    return copy_each(source, target, source_step, target_step, columns, rows);
  }
  alignas(64) std::array<T, kTile<T>> tile;
  T* to = tile.data();
  const int64_t whole_columns = columns / n * n, whole_rows = rows / n * n;
  for (int64_t r = 0; r < whole_rows; r += n) {
    for (int64_t c = 0; c < whole_columns; c += n) {
      transpose_square(source + r * source_step + c, source_step, to + c * rows + r, rows);
    }
  }
  copy_each(source + whole_columns, to + whole_columns * rows, source_step, rows,
            columns - whole_columns, whole_rows);
  copy_each(source + whole_rows * source_step, to + whole_rows, source_step, rows, columns,
            rows - whole_rows);
  for (int64_t c = 0; c < columns; ++c) {
    std::memcpy(target + c * target_step, to + c * rows, rows * sizeof(T));
  }
}

// Copies `outer` planes of rows, which are contiguous in the result, and columns, which are
// contiguous in the source.
template <typename T>
void copy_planes(const T* source, T* target, const Dim& column, const Dim& row, const Dims& outer) {
  const int64_t columns = std::min(column.size, kTile<T> / std::min(row.size, kRows<T>));
  const int64_t rows = std::min(row.size, kTile<T> / columns);
  const int64_t across = (column.size + columns - 1) / columns;
  const int64_t along = (row.size + rows - 1) / rows;
  int64_t planes = 1;
  for (const Dim& dim : outer) planes *= dim.size;
  const int64_t grain = std::max<int64_t>(1, kFewestElements / (columns * rows));
  at::parallel_for(0, planes * across * along, grain, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t r = task % along * rows, c = task / along % across * columns;
      const T* from = source + c + r * row.source;
      T* to = target + c * column.target + r;
      int64_t plane = task / across / along;
      for (const Dim& dim : outer) {
        from += plane % dim.size * dim.source;
        to += plane % dim.size * dim.target;
        plane /= dim.size;
      }
      copy_tile(from, to, row.source, column.target, std::min(columns, column.size - c),
                std::min(rows, row.size - r));
    }
  });
}

template <typename T>
void copy_as(const at::Tensor& x, void* target, const Dim& column, const Dim& row,
             const Dims& outer) {
  copy_planes(static_cast<const T*>(x.const_data_ptr()), static_cast<T*>(target), column, row,
              outer);
}

bool is_plain(const at::Tensor& x) {
  return x.layout() == at::kStrided && x.device().is_cpu() && !x.is_quantized() && !x.is_conj() &&
         !x.is_neg() && x.numel() > 0;
}

}  // namespace

bool copy_by_tiles(const at::Tensor& x, void* target) {
  if (!is_plain(x)) return false;
  Dims dims = merged(x.sizes(), x.strides());
  if (dims.size() < 2 || dims[0].source == 1) return false;
  const auto next = [](const Dim& dim) { return dim.source == 1; };
  const auto* column = std::find_if(dims.begin(), dims.end(), next);
  if (column == dims.end()) return false;
  const Dim columns = *column, rows = dims[0];
  dims.erase(dims.begin() + (column - dims.begin()));
  dims.erase(dims.begin());
  switch (x.element_size()) {
    case 1:
      copy_as<uint8_t>(x, target, columns, rows, dims);
      return true;
    case 2:
      copy_as<uint16_t>(x, target, columns, rows, dims);
      return true;
    case 4:
      copy_as<uint32_t>(x, target, columns, rows, dims);
      return true;
    case 8:
      copy_as<uint64_t>(x, target, columns, rows, dims);
      return true;
    default:
      return false;
  }
}

at::Tensor permuted_copy(const at::Tensor& x) {
  at::Tensor result = at::empty(x.sizes(), x.options().memory_format(at::MemoryFormat::Contiguous));
  if (!copy_by_tiles(x, result.mutable_data_ptr())) result.copy_(x);
  return result;
}

at::Tensor with_dense_rows(const at::Tensor& x) {
  return x.stride(-1) == 1 && !x.is_neg() ? x : permuted_copy(x);
}

}  // namespace poptorch_emu
