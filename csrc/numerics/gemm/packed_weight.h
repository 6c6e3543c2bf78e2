#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "common/product_kernel.h"

namespace poptorch_emu {

// The weight of a linear layer, float32 or float16 (outputs, inputs), as float32 numbers in the
// order in which a kernel reads it: for small products the transpose with whole lines of outputs,
// (inputs, outputs); panels, (panels, inputs, width); or what MKL has made of it, a row of numbers.
// What fills lines and panels up stays what it is.

// Returns the weight packed for a kernel. MKL's order is for products with `rows` rows, and spans
// up to 12 MB more than the weight, of which nothing is written: the host holds it only where the
// memory was used before.
at::Tensor pack_weight(const at::Tensor& weight, ProductKernel kernel, int64_t rows);
// The same in the memory of what was packed before.
void pack_weight_again(const at::Tensor& weight, ProductKernel kernel, int64_t rows,
                       at::Tensor& packed);

// Returns x (rows, inputs) times the weight, plus the bias (outputs) if there is one.
at::Tensor packed_linear(const at::Tensor& x, const at::Tensor& packed,
                         const std::optional<at::Tensor>& bias, int64_t num_outputs,
                         ProductKernel kernel);

}  // namespace poptorch_emu
