// Operator that runs elementwise operations in one pass over its tensors.
//
// The update of a weight consists of about ten operations. Run separately, each one reads and
// writes whole tensors, and memory limits the speed. Here a block of all tensors goes through all
// operations while it is in the cache.

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "common/sharing.h"
#include "numerics/elementwise_pass.h"
#include "numerics/half_numbers.h"

namespace poptorch_emu {
namespace {

// Numbers in a block: a dozen blocks fit into a core's second-level cache.
constexpr int64_t kBlock = 8192;
// Below this number of elements a second thread costs more time than it saves.
constexpr int64_t kGrain = 32768;

bool is_half(const at::Tensor& tensor) { return tensor.scalar_type() == at::kHalf; }

// Returns a contiguous tensor; throws unless it is float32 or float16 with `numel` elements.
at::Tensor input_of(const at::Tensor& tensor, int64_t numel) {
  const bool has_type = tensor.scalar_type() == at::kFloat || is_half(tensor);
  TORCH_CHECK(has_type && tensor.numel() == numel, "poptorch_emu::elementwise takes tensors of ",
              numel, " elements of float32 or float16, not ", tensor.scalar_type(), tensor.sizes(),
              ".");
  return tensor.contiguous();
}

// Runs the operations on one group of tensors after the other. One pass serves all groups that may
// overwrite the same tensors.
class Groups {
 public:
  Groups(const ElementwiseCode& code, int64_t block) : code_(code), block_(block) {}

  // Runs the operations on a group and adds its results to `outputs`.
  void run(at::TensorList tensors, std::vector<at::Tensor>& outputs) {
    const int64_t numel = tensors[0].numel();
    std::vector<at::Tensor> inputs;
    inputs.reserve(tensors.size());
    for (const at::Tensor& tensor : tensors) inputs.push_back(input_of(tensor, numel));
    const size_t first = outputs.size();
    for (int64_t number : code_.overwritten) {
      outputs.push_back(number < 0 ? at::empty(tensors[0].sizes(), at::TensorOptions(at::kFloat))
                                   : inputs.at(number));
    }
    const ElementwisePass& pass = pass_for(inputs);
    const int64_t num_halves = std::count_if(inputs.begin(), inputs.end(), is_half);
    const auto run_blocks = [&](int64_t b, int64_t e) {
      float* const widened =
          ElementwisePass::scratch_of_thread(num_halves * kBlock + pass.scratch_size());
      float* const scratch = widened + num_halves * kBlock;
      std::vector<float*> in(inputs.size());
      const int64_t end = std::min(e * kBlock, numel);
      for (int64_t begin = b * kBlock; begin < end; begin += kBlock) {
        const int64_t n = std::min(kBlock, end - begin);
        float* next_widened = widened;
        for (size_t i = 0; i < in.size(); ++i) {
          if (is_half(inputs[i])) {
            in[i] = std::exchange(next_widened, next_widened + kBlock);
            widen_halves(writable_memory<at::Half>(inputs[i]) + begin, n, in[i]);
          } else {
            in[i] = writable_memory<float>(inputs[i]) + begin;
          }
        }
        pass.run(n, std::min(kBlock, end - begin - n), in, scratch);
        // Copy results that could not overwrite a tensor while other operations still read it.
        for (size_t i = 0; i < code_.results.size(); ++i) {
          const float* const values = pass.place(code_.results[i], in, scratch);
          const at::Tensor& output = outputs[first + i];
          if (is_half(output)) {
            narrow_to_halves(values, n, writable_memory<at::Half>(output) + begin);
          } else if (values != writable_memory<float>(output) + begin) {
            std::copy_n(values, n, writable_memory<float>(output) + begin);
          }
        }
      }
    };
    share_out((numel + kBlock - 1) / kBlock, kGrain / kBlock, run_blocks);
  }

 private:
  const ElementwisePass& pass_for(const std::vector<at::Tensor>& inputs) {
    std::vector<int64_t> places = code_.early_places(inputs);
    if (!pass_.has_value() || places != places_) {
      places_ = std::move(places);
      pass_.emplace(code_, static_cast<int64_t>(inputs.size()), block_, places_);
    }
    return *pass_;
  }

  const ElementwiseCode& code_;
  const int64_t block_;
  std::optional<ElementwisePass> pass_;
  std::vector<int64_t> places_;
};

// Returns the values named by `results`, in the shape of the first tensor. Tensors are float32 or
// float16. Results are float32, unless they overwrite a float16 tensor. Each result overwrites the
// tensor with its number in `overwritten`, or is a new tensor for -1. `tensors` holds `num_groups`
// groups of equal size, one after the other, and so do the results.
std::vector<at::Tensor> elementwise(at::TensorList tensors, at::TensorList scalars,
                                    at::IntArrayRef code, at::ArrayRef<double> constants,
                                    at::IntArrayRef results, at::IntArrayRef overwritten,
                                    int64_t num_groups) {
  const ElementwiseCode program{code, constants, scalars, results, overwritten};
  program.check();
  const auto num_tensors = static_cast<int64_t>(tensors.size());
  TORCH_CHECK(num_tensors > 0 && num_groups > 0 && num_tensors % num_groups == 0,
              "poptorch_emu::elementwise cannot make ", num_groups, " equal groups of ",
              num_tensors, " tensors.");
  const int64_t width = num_tensors / num_groups;
  int64_t longest = 0;
  for (int64_t i = 0; i < num_tensors; i += width) longest = std::max(longest, tensors[i].numel());
  Groups groups(program, std::min(longest, kBlock));
  std::vector<at::Tensor> outputs;
  outputs.reserve(num_groups * results.size());
  for (int64_t i = 0; i < num_tensors; i += width) groups.run(tensors.slice(i, width), outputs);
  return outputs;
}

}  // namespace
}  // namespace poptorch_emu

TORCH_LIBRARY_FRAGMENT(poptorch_emu, m) {
  m.def(
      "elementwise(Tensor[] tensors, Tensor[] scalars, int[] code, float[] constants, int[] "
      "results, int[] overwritten, int num_groups=1) -> Tensor[]");
  // `elementwise_rows` has no kernel, because the engine supplies the row sums
  // (`numerics/row_update.h`).
  m.def(
      "elementwise_rows(Tensor[] matrices, Tensor[] scalars, int[] code, float[] constants, int[] "
      "results, int[] overwritten, int sum) -> Tensor[]");
}

TORCH_LIBRARY_IMPL(poptorch_emu, CPU, m) { m.impl("elementwise", &poptorch_emu::elementwise); }
