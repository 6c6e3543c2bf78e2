// Gradient of a cross entropy with respect to its scores, without a whole tensor for the gradient
// of the log-probabilities. That tensor would be as large as the scores and zero except for one
// class in each row.

#include <ATen/core/Reduction.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_log_softmax_backward_data.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <torch/library.h>

#include <algorithm>
#include <vector>

#include "common/sharing.h"

namespace poptorch_emu {
namespace {

void check_classes(const int64_t* classes, int64_t num_rows, int64_t num_classes,
                   int64_t ignore_index) {
  for (int64_t row = 0; row < num_rows; ++row) {
    const int64_t index = classes[row];
    TORCH_CHECK_INDEX(index == ignore_index || (index >= 0 && index < num_classes), "Target ",
                      index, " is out of bounds for ", num_classes, " classes.");
  }
}

// `logarithms` is the float32 log-softmax (rows, classes), and `target` holds integers (rows). The
// gradient of the reduced loss and the total weight are scalars. The result has the bits of
// PyTorch's two operators. Few rows are computed at a time, so that their gradient stays in a
// core's cache.
at::Tensor cross_entropy_backward(const at::Tensor& gradient, const at::Tensor& logarithms,
                                  const at::Tensor& target, int64_t reduction, int64_t ignore_index,
                                  const at::Tensor& total_weight) {
  constexpr int64_t kNumbersAtOnce = int64_t{1} << 15;
  const int64_t num_rows = logarithms.size(0), num_classes = logarithms.size(1);
  const at::Tensor logs = logarithms.contiguous(), classes = target.to(at::kLong).contiguous();
  const int64_t* const class_of = classes.const_data_ptr<int64_t>();
  check_classes(class_of, num_rows, num_classes, ignore_index);
  float of_class = -gradient.item<float>();
  if (reduction == at::Reduction::Mean) of_class /= total_weight.item<float>();

  const at::Tensor result = at::empty(logs.sizes(), logs.options());
  const int64_t rows_at_once = std::clamp<int64_t>(
      kNumbersAtOnce / std::max<int64_t>(num_classes, 1), 1, std::max<int64_t>(num_rows, 1));
  const int64_t num_parts = (num_rows + rows_at_once - 1) / rows_at_once;
  share_out(num_parts, /*at_least=*/2, [&](int64_t begin, int64_t end) {
    // A thread-local buffer, because a thread may run any number of parts. It is 0 between parts.
    thread_local std::vector<float> numbers;
    numbers.resize(std::max<size_t>(numbers.size(), rows_at_once * num_classes));
    const at::Tensor of_logs =
        at::from_blob(numbers.data(), {rows_at_once, num_classes}, logs.options());
    for (int64_t part = begin; part < end; ++part) {
      const int64_t first = part * rows_at_once;
      const int64_t count = std::min(rows_at_once, num_rows - first);
      const auto set_all = [&](float value) {
        for (int64_t row = 0; row < count; ++row) {
          const int64_t index = class_of[first + row];
          if (index != ignore_index) numbers[row * num_classes + index] = value;
        }
      };
      set_all(of_class);
      at::Tensor place = result.narrow(0, first, count);
      at::_log_softmax_backward_data_out(place, of_logs.narrow(0, 0, count),
                                         logs.narrow(0, first, count), 1, at::kFloat);
      set_all(0.0f);
    }
  });
  return result;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(poptorch_emu, m) {
  m.def(
      "cross_entropy_backward(Tensor gradient, Tensor logarithms, Tensor target, int reduction, "
      "int ignore_index, Tensor total_weight) -> Tensor");
}

TORCH_LIBRARY_IMPL(poptorch_emu, CPU, m) {
  m.impl("cross_entropy_backward", cross_entropy_backward);
}

}  // namespace poptorch_emu
