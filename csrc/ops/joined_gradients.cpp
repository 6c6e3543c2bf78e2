// Operator that concatenates the gradients of a tensor's parts in one pass.

#include <ATen/core/Tensor.h>
#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>
#include <torch/library.h>

#include <vector>

namespace poptorch_emu {
namespace {

// Returns the parts concatenated along `dim`, with the bits of a sum of zero-padded parts. For
// example, -0 in a part becomes 0.
at::Tensor joined_gradients(at::TensorList parts, int64_t dim) {
  std::vector<int64_t> sizes = parts[0].sizes().vec();
  for (size_t i = 1; i < parts.size(); ++i) sizes.at(dim) += parts[i].size(dim);
  at::Tensor result = at::empty(sizes, parts[0].options());
  const at::Tensor zero = at::scalar_tensor(0, parts[0].options());
  int64_t begin = 0;
  for (const at::Tensor& part : parts) {
    at::Tensor place = result.narrow(dim, begin, part.size(dim));
    TORCH_CHECK(part.sizes() == place.sizes(), "poptorch_emu::joined_gradients puts together ",
                "parts that differ in dimension ", dim, " alone, not ", parts[0].sizes(), " and ",
                part.sizes(), ".");
    at::add_out(place, part, zero);
    begin += part.size(dim);
  }
  return result;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(poptorch_emu, m) {
  m.def("joined_gradients(Tensor[] parts, int dim) -> Tensor");
}

TORCH_LIBRARY_IMPL(poptorch_emu, CPU, m) { m.impl("joined_gradients", joined_gradients); }

}  // namespace poptorch_emu
