// Memory layout of the results of a convolution.
#pragma once

#include "metadata/rules.h"

namespace poptorch_emu::metadata {

// PyTorch's CPU kernels return images channels last or contiguous, depending on the types, sizes
// and strides of their arguments. This class asks PyTorch itself, with tensors of the CPU. It
// treats 16-bit numbers as float32, because only some processors have kernels for them.
class ConvolutionLayout {
 public:
  // Accepts the operator's arguments; for a gradient, the sizes of the bias replace the bias.
  ConvolutionLayout(const Tensor& input, const Tensor& weight, const OptionalTensor& bias,
                    at::OptionalIntArrayRef bias_sizes, IntArrayRef stride, IntArrayRef padding,
                    IntArrayRef dilation, bool is_transposed, IntArrayRef output_padding,
                    int64_t groups);

  // Returns a result with these sizes: the images, or the gradient of the input or the weight.
  Tensor empty(IntArrayRef sizes) const;

 private:
  ScalarType dtype_;
  MemoryFormat format_;
};

}  // namespace poptorch_emu::metadata
