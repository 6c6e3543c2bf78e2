#include "numerics/stack_into.h"

#include <ATen/ops/stack.h>

#include <algorithm>

namespace poptorch_emu {

bool stack_into(at::TensorList samples, const at::Tensor& place) {
  if (place.dim() == 0 || static_cast<int64_t>(samples.size()) != place.size(0)) return false;
  const at::IntArrayRef shape = place.sizes().slice(1);
  const bool fit = std::all_of(samples.begin(), samples.end(), [&](const at::Tensor& sample) {
    return sample.layout() == at::kStrided && sample.is_cpu() && !sample.requires_grad() &&
           sample.scalar_type() == place.scalar_type() && sample.sizes() == shape;
  });
  if (!fit || samples.empty()) return false;
  at::Tensor target = place;
  at::stack_out(target, samples);
  return true;
}

}  // namespace poptorch_emu
