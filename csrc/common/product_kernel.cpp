#include "common/product_kernel.h"

#include <c10/util/Exception.h>

#include "common/vectors.h"

namespace poptorch_emu {

const char* name_of(ProductKernel kernel) {
  switch (kernel) {
    case ProductKernel::kLibrary:
      return "library";
    case ProductKernel::kSmall:
      return "small";
    case ProductKernel::kPanels:
      return "panels";
  }
  return "unknown";
}

ProductKernel product_kernel(int64_t number) {
  const auto kernel = static_cast<ProductKernel>(number);
  TORCH_CHECK_VALUE(0 <= number && number <= static_cast<int64_t>(ProductKernel::kPanels),
                    "There is no kernel for products with the number ", number, ".");
  TORCH_CHECK_VALUE(kernel == ProductKernel::kLibrary || vectors::width() > 0, "The kernel '",
                    name_of(kernel), "' needs a processor with AVX2, but this processor does not ",
                    "support AVX2. Compile the model again on this computer.");
  return kernel;
}

}  // namespace poptorch_emu
