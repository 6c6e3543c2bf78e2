// Operators whose result depends on the strides of their arguments, extended to any strides. A
// kernel's result, or a layout of the engine, may have other strides than the captured value.
//
// `strided` converts a value to the strides that its reader expects. The other operators have the
// names and arguments of PyTorch's, whose kernels assume certain strides. With other strides,
// PyTorch's kernels raise an error or read wrong elements.

#include <ATen/core/boxing/OperatorKernel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <ATen/ops/empty_strided.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string>

#include "numerics/permuted_copy.h"

namespace poptorch_emu {
namespace {

bool has_strides(const at::Tensor& x, at::IntArrayRef strides) {
  if (x.storage_offset() != 0) return false;
  for (int64_t dim = 0; dim < x.dim(); ++dim) {
    if (x.size(dim) != 1 && x.stride(dim) != strides[static_cast<size_t>(dim)]) return false;
  }
  return true;
}

// Returns x with these strides at the start of its memory, or x itself if it has this layout.
at::Tensor strided(const at::Tensor& x, at::IntArrayRef strides) {
  TORCH_CHECK(x.dim() == static_cast<int64_t>(strides.size()), "there are ", strides.size(),
              " strides for ", x.dim(), " dimensions");
  if (x.numel() == 0 || has_strides(x, strides)) return x;
  return at::empty_strided(x.sizes(), strides, x.options()).copy_(x);
}

at::Tensor strided_on_meta(const at::Tensor& x, at::IntArrayRef strides) {
  return at::empty_strided(x.sizes(), strides, x.options());
}

struct Name {
  const char* name;
  const char* overload = "";
};

// Operators that require contiguous arguments; `tests/opinfo/memory_order.py` finds them.
constexpr std::array kOfContiguous{
    Name{"_ctc_loss"},
    Name{"_ctc_loss", "Tensor"},
    Name{"_embedding_bag"},
    Name{"_embedding_bag_forward_only"},
    Name{"_pdist_backward"},
    Name{"_pdist_forward"},
    Name{"adaptive_max_pool3d_backward"},
    Name{"fractional_max_pool2d_backward"},
    Name{"fractional_max_pool3d_backward"},
    Name{"mkldnn_rnn_layer"},
    Name{"native_group_norm"},
    Name{"native_group_norm_backward"},
    Name{"native_layer_norm_backward"},
    Name{"nll_loss2d_backward"},
    Name{"view", "dtype"},
    Name{"view_as_complex"},
};
// Operators that require contiguous arguments, or volumes that are all channels last.
constexpr std::array kOfVolumes{
    Name{"max_pool3d_with_indices"},
    Name{"max_pool3d_with_indices_backward"},
};
// Operators that require dense rows.
constexpr std::array kOfDenseRows{
    Name{"_scaled_dot_product_flash_attention_for_cpu"},
    Name{"_scaled_dot_product_flash_attention_for_cpu_backward"},
};
// Argument that kernels may read with any strides.
constexpr const char* kMask = "attn_mask";

bool has_dense_rows(const at::Tensor& x) { return x.dim() == 0 || x.stride(-1) == 1; }

c10::OperatorHandle operator_named(const std::string& name, const std::string& overload) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), overload.c_str());
}

// Calls PyTorch's operator of the same name with arguments that `lies_well` accepts.
template <bool (*lies_well)(const at::Tensor&)>
class OrderedCall : public c10::OperatorKernel {
 public:
  explicit OrderedCall(const c10::OperatorHandle& theirs) : theirs_(theirs) {}

  void operator()(const c10::OperatorHandle&, c10::DispatchKeySet, torch::jit::Stack* stack) const {
    const auto& arguments = theirs_.schema().arguments();
    const size_t first = stack->size() - arguments.size();
    for (size_t i = 0; i < arguments.size(); ++i) {
      c10::IValue& value = (*stack)[first + i];
      const bool is_given = value.isTensor() && value.toTensor().defined();
      if (!is_given || arguments[i].name() == kMask || lies_well(value.toTensor())) continue;
      value = permuted_copy(value.toTensor());
    }
    theirs_.callBoxed(stack);
  }

 private:
  c10::OperatorHandle theirs_;
};

bool is_contiguous(const at::Tensor& x) { return x.is_contiguous(); }

bool is_volume(const at::Tensor& x) {
  return x.is_contiguous() || (x.dim() == 5 && x.is_contiguous(at::MemoryFormat::ChannelsLast3d));
}

std::string full_name(const Name& name) {
  const std::string overload = name.overload;
  return overload.empty() ? name.name : name.name + ("." + overload);
}

template <typename Names>
void define_all(torch::Library& m, const Names& names) {
  for (const Name& each : names) {
    const std::string name = each.name;
    const auto theirs = operator_named("aten::" + name, each.overload);
    m.def(theirs.schema().cloneWithName("poptorch_emu::" + name, each.overload));
  }
}

template <bool (*lies_well)(const at::Tensor&), typename Names>
void implement_all(torch::Library& m, const Names& names) {
  for (const Name& each : names) {
    const auto theirs = operator_named("aten::" + std::string(each.name), each.overload);
    m.impl(full_name(each).c_str(), torch::CppFunction::makeFromBoxedFunctor(
                                        std::make_unique<OrderedCall<lies_well>>(theirs)));
  }
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(poptorch_emu, m) {
  m.def("strided(Tensor(a) self, int[] stride) -> Tensor(a)");
  define_all(m, kOfContiguous);
  define_all(m, kOfVolumes);
  define_all(m, kOfDenseRows);
}

TORCH_LIBRARY_IMPL(poptorch_emu, CPU, m) {
  m.impl("strided", strided);
  implement_all<is_contiguous>(m, kOfContiguous);
  implement_all<is_volume>(m, kOfVolumes);
  implement_all<has_dense_rows>(m, kOfDenseRows);
}
TORCH_LIBRARY_IMPL(poptorch_emu, Meta, m) { m.impl("strided", strided_on_meta); }

}  // namespace poptorch_emu
