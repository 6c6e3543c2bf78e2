#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace poptorch_emu {

// The weight of a linear layer, float32 or float16 (outputs, inputs), as float32 numbers in the
// order in which its products read it: that of our kernel for small ones, that of our kernel for
// large ones (`panel_product.h`), or that of PyTorch's library (MKL), which brings a weight into it
// in each product otherwise.

// Whether a layer's products are small, so that our kernel makes them with the packed weight.
bool is_small_layer(int64_t rows, int64_t num_inputs, int64_t num_outputs);

// Returns the weight packed for products with so many rows: numbers that `packed_linear` alone
// understands, or the transpose where the library has no such order. Those of the library span up
// to 12 MB more than the weight, of which nothing is written: the host holds it only where the
// memory was used before.
at::Tensor pack_weight(const at::Tensor& given, int64_t rows);
// The same in the memory of what was packed before.
void pack_weight_again(const at::Tensor& given, int64_t rows, at::Tensor& packed);

// Returns x (rows, inputs) times the weight, plus the bias (outputs) if there is one.
at::Tensor packed_linear(const at::Tensor& x, const at::Tensor& packed,
                         const std::optional<at::Tensor>& bias, int64_t num_outputs);

}  // namespace poptorch_emu
