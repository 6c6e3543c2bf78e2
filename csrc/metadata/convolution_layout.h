// How the results of a convolution lie in memory.
#pragma once

#include "metadata/rules.h"

namespace poptorch_emu::metadata {

// PyTorch's kernels for the CPU return images channels last or contiguous, by the types, sizes and
// strides that they are given. PyTorch itself is asked, as if the tensors were the CPU's; 16-bit
// numbers count as float32, since only some processors have kernels for them.
class ConvolutionLayout {
 public:
  // Takes what the operator takes; of a gradient there are sizes of the bias instead of the bias.
  ConvolutionLayout(const Tensor& input, const Tensor& weight, const OptionalTensor& bias,
                    at::OptionalIntArrayRef bias_sizes, IntArrayRef stride, IntArrayRef padding,
                    IntArrayRef dilation, bool is_transposed, IntArrayRef output_padding,
                    int64_t groups);

  // Returns a result of these sizes: the images, the gradient of the input or that of the weight.
  Tensor empty(IntArrayRef sizes) const;

 private:
  ScalarType dtype_;
  MemoryFormat format_;
};

}  // namespace poptorch_emu::metadata
