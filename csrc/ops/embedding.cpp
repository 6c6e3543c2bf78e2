// Operator that returns rows of an embedding and prefetches them.

#include <ATen/ops/embedding.h>
#include <torch/library.h>

#include <vector>

#include "numerics/row_copies.h"

namespace poptorch_emu {
namespace {

// Returns rows of a CPU weight [rows, width] as [..., width]. Indices are int64 or int32 [...].
at::Tensor embedding(const at::Tensor& weight, const at::Tensor& indices) {
  // Other weights go to PyTorch's kernel, because gathering rows would copy the whole table.
  const bool has_rows = weight.is_contiguous() && !weight.is_neg() && !weight.is_conj();
  if (!has_rows) return at::embedding(weight, indices);
  const at::Tensor rows = indices.to(at::kLong).contiguous();
  const int64_t num_rows = weight.size(0);
  const auto* const row = rows.const_data_ptr<int64_t>();
  for (int64_t place = 0; place < rows.numel(); ++place) {
    TORCH_CHECK_INDEX(row[place] >= 0 && row[place] < num_rows,
                      "index out of range in self: ", row[place],
                      " was looked up in an embedding of ", num_rows, " rows.");
  }
  std::vector<int64_t> sizes = indices.sizes().vec();
  sizes.push_back(weight.size(1));
  return gather_rows(weight, rows).view(sizes);
}

}  // namespace
}  // namespace poptorch_emu

TORCH_LIBRARY_FRAGMENT(poptorch_emu, m) {
  m.def("embedding(Tensor weight, Tensor indices) -> Tensor");
}

TORCH_LIBRARY_IMPL(poptorch_emu, CPU, m) { m.impl("embedding", &poptorch_emu::embedding); }
