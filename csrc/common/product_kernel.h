#pragma once

#include <cstdint>

namespace poptorch_emu {

// Implementation of a matrix product. `poptorch_emu/engine/product_kernels.py` chooses one for each
// instruction by sizes and processor; the engine only checks that it can run.
enum class ProductKernel : int64_t {
  kLibrary,  // PyTorch's own product, which calls MKL if available
  kSmall,    // `numerics/gemm/small_product.h`
  kPanels,   // `numerics/gemm/panel_product.h`
};

const char* name_of(ProductKernel kernel);

// Returns the kernel with this number. Throws `ValueError` for an unknown number, and for a kernel
// that this processor cannot run.
ProductKernel product_kernel(int64_t number);

}  // namespace poptorch_emu
