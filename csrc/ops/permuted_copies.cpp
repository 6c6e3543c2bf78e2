// Operators that copy permuted tensors in tiles, and otherwise call PyTorch's.

#include <ATen/InferSize.h>
#include <ATen/TensorUtils.h>
#include <ATen/ops/clone.h>
#include <torch/library.h>

#include <optional>

#include "numerics/permuted_copy.h"

namespace poptorch_emu {
namespace {

at::Tensor clone(const at::Tensor& x, std::optional<at::MemoryFormat> memory_format) {
  if (memory_format == at::MemoryFormat::Contiguous) return permuted_copy(x);
  return at::clone(x, memory_format);
}

at::Tensor contiguous(const at::Tensor& x, at::MemoryFormat memory_format) {
  if (memory_format == at::MemoryFormat::Contiguous && !x.is_contiguous()) return permuted_copy(x);
  return x.contiguous(memory_format);
}

at::Tensor reshape(const at::Tensor& x, at::IntArrayRef shape) {
  const auto sizes = at::infer_size_dv(shape, x.numel());
  if (at::detail::computeStride(x.sizes(), x.strides(), sizes)) return x.view(sizes);
  return permuted_copy(x).view(sizes);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(poptorch_emu, m) {
  m.def("clone(Tensor self, *, MemoryFormat? memory_format=None) -> Tensor");
  m.def("contiguous(Tensor(a) self, *, MemoryFormat memory_format=contiguous_format) -> Tensor(a)");
  m.def("reshape(Tensor(a) self, int[] shape) -> Tensor(a)");
}

TORCH_LIBRARY_IMPL(poptorch_emu, CPU, m) {
  m.impl("clone", clone);
  m.impl("contiguous", contiguous);
  m.impl("reshape", reshape);
}

}  // namespace poptorch_emu
