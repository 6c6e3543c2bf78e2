#pragma once

#include <cstdint>

namespace poptorch_emu {

// What makes a product of matrices. `poptorch_emu/engine/product_kernels.py` chooses it for an
// instruction, by the sizes and the processor; here it is only checked that it can run.
enum class ProductKernel : int64_t {
  kLibrary,  // PyTorch's own product, which calls MKL where there is one
  kSmall,    // `numerics/gemm/small_product.h`
  kPanels,   // `numerics/gemm/panel_product.h`
};

const char* name_of(ProductKernel kernel);

// Returns what an argument of an operator stands for. Throws `ValueError` for any other number, and
// for a kernel that this processor cannot run.
ProductKernel product_kernel(int64_t number);

}  // namespace poptorch_emu
