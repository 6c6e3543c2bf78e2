#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "common/product_kernel.h"

namespace poptorch_emu {

// The weight of a linear layer, float32 or float16 (outputs, inputs), as float32 numbers in the
// order in which a kernel reads it. For small products it is the transpose (inputs, outputs) with
// whole lines of outputs; for panels (panels, inputs, width); for MKL its own format in a row of
// numbers. Padding of lines and panels keeps its old value.

// Returns the weight packed for a kernel. MKL's format is specific to products with `rows` rows. It
// spans up to 12 MB more than the weight, but MKL does not write this part. The host only allocates
// it if the memory was used before.
at::Tensor pack_weight(const at::Tensor& weight, ProductKernel kernel, int64_t rows);
// Packs the weight again into the memory of an earlier result.
void pack_weight_again(const at::Tensor& weight, ProductKernel kernel, int64_t rows,
                       at::Tensor& packed);

// Returns x (rows, inputs) times the weight, plus the bias (outputs) if given.
at::Tensor packed_linear(const at::Tensor& x, const at::Tensor& packed,
                         const std::optional<at::Tensor>& bias, int64_t num_outputs,
                         ProductKernel kernel);

}  // namespace poptorch_emu
