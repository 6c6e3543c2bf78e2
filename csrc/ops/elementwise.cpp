// A run of elementwise operations in one pass over its tensors.
//
// The update of a weight is some ten operations; each of them by itself reads and writes whole
// tensors, which takes as long as the memory is slow. Here a block of all tensors goes through all
// operations while it is in the cache. Each element sees the same operations, in the same order and
// with the same roundings as in PyTorch's kernels, so the bits are the same.

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/sqrt.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "common/sharing.h"
#include "ops/for_each_cpu.h"

#pragma GCC push_options
#pragma GCC optimize("O3,no-math-errno,fp-contract=off")

namespace poptorch_emu {
namespace {

// Elements of a block: a dozen blocks fit into a core's second cache.
constexpr int64_t kBlock = 4096;
// Of a block without square roots, each of which is a call of PyTorch: they fit into the first.
constexpr int64_t kSmallBlock = 512;
// Below so many elements a second thread costs more than it gives.
constexpr int64_t kGrain = 8 * kBlock;

// What `code` says: rows of an operation, the value it makes and those it takes. A value is one of
// the tensors, then what the rows make, one after the other. A negative number stands for a scalar:
// -1 for the first constant, the 0-d tensors behind the constants.
enum class Operation : int64_t {
  kCopy,     // a
  kNeg,      // -a
  kSqrt,     // √a
  kMul,      // a b
  kDiv,      // a / b
  kAdd,      // a + c b, rounded once
  kAddcmul,  // a + (d b) c, the sum rounded with the second product
  kAddcdiv,  // a + (d b) / c
  kLerp,     // a moved towards b by the fraction c
};
constexpr int64_t kRow = 6;

namespace kernels {

using In = const float* __restrict__;
using Out = float* __restrict__;

POPTORCH_EMU_FOR_EACH_CPU void copy(int64_t n, Out out, In a) {
  for (int64_t i = 0; i < n; ++i) out[i] = a[i];
}
POPTORCH_EMU_FOR_EACH_CPU void neg(int64_t n, Out out, In a) {
  for (int64_t i = 0; i < n; ++i) out[i] = -a[i];
}
// PyTorch's own, which on many computers is that of a library and not rounded like the processor's.
void sqrt(int64_t n, float* out, const float* a) {
  at::Tensor result = at::from_blob(out, {n}, at::kFloat);
  at::sqrt_out(result, at::from_blob(const_cast<float*>(a), {n}, at::kFloat));
}
POPTORCH_EMU_FOR_EACH_CPU void mul(int64_t n, Out out, In a, In b) {
  for (int64_t i = 0; i < n; ++i) out[i] = a[i] * b[i];
}
POPTORCH_EMU_FOR_EACH_CPU void div(int64_t n, Out out, In a, In b) {
  for (int64_t i = 0; i < n; ++i) out[i] = a[i] / b[i];
}
POPTORCH_EMU_FOR_EACH_CPU void add(int64_t n, Out out, In a, In b, In c) {
  for (int64_t i = 0; i < n; ++i) out[i] = __builtin_fmaf(b[i], c[i], a[i]);
}
POPTORCH_EMU_FOR_EACH_CPU void addcmul(int64_t n, Out out, In a, In b, In c, In d) {
  for (int64_t i = 0; i < n; ++i) out[i] = __builtin_fmaf(d[i] * b[i], c[i], a[i]);
}
POPTORCH_EMU_FOR_EACH_CPU void addcdiv(int64_t n, Out out, In a, In b, In c, In d) {
  for (int64_t i = 0; i < n; ++i) out[i] = a[i] + d[i] * b[i] / c[i];
}
POPTORCH_EMU_FOR_EACH_CPU void lerp(int64_t n, Out out, In a, In b, In c) {
  for (int64_t i = 0; i < n; ++i) {
    const bool is_near = __builtin_fabsf(c[i]) < 0.5f;
    const float step = b[i] - a[i];
    out[i] = is_near ? __builtin_fmaf(c[i], step, a[i]) : __builtin_fmaf(c[i] - 1.0f, step, b[i]);
  }
}

}  // namespace kernels

void run_row(Operation operation, int64_t n, float* out, const std::array<const float*, 4>& in) {
  switch (operation) {
    case Operation::kCopy:
      return kernels::copy(n, out, in[0]);
    case Operation::kNeg:
      return kernels::neg(n, out, in[0]);
    case Operation::kSqrt:
      return kernels::sqrt(n, out, in[0]);
    case Operation::kMul:
      return kernels::mul(n, out, in[0], in[1]);
    case Operation::kDiv:
      return kernels::div(n, out, in[0], in[1]);
    case Operation::kAdd:
      return kernels::add(n, out, in[0], in[1], in[2]);
    case Operation::kAddcmul:
      return kernels::addcmul(n, out, in[0], in[1], in[2], in[3]);
    case Operation::kAddcdiv:
      return kernels::addcdiv(n, out, in[0], in[1], in[2], in[3]);
    case Operation::kLerp:
      return kernels::lerp(n, out, in[0], in[1], in[2]);
  }
  TORCH_CHECK(false, "poptorch_emu::elementwise knows no operation ",
              static_cast<int64_t>(operation), ".");
}

int64_t block_of(at::IntArrayRef code) {
  for (const int64_t* row = code.begin(); row != code.end(); row += kRow) {
    if (static_cast<Operation>(*row) == Operation::kSqrt) return kBlock;
  }
  return kSmallBlock;
}

// Memory of the current thread for so many numbers, which may be anything.
float* scratch_of_thread(int64_t count) {
  thread_local std::vector<float> scratch;
  if (static_cast<int64_t>(scratch.size()) < count) scratch.resize(count);
  return scratch.data();
}

// Each scalar as a block of equal numbers, so that all operands are alike.
std::vector<float> blocks_of(at::ArrayRef<double> constants, at::TensorList scalars, int64_t size) {
  std::vector<float> blocks;
  blocks.reserve((constants.size() + scalars.size()) * size);
  for (double constant : constants) blocks.insert(blocks.end(), size, static_cast<float>(constant));
  for (const at::Tensor& scalar : scalars) {
    TORCH_CHECK(scalar.scalar_type() == at::kFloat && scalar.numel() == 1,
                "poptorch_emu::elementwise takes scalars of float32, not ", scalar.scalar_type(),
                scalar.sizes(), ".");
    blocks.insert(blocks.end(), size, *scalar.const_data_ptr<float>());
  }
  return blocks;
}

// Returns the values that `results` names, in the shape of the first tensor. Each takes the place
// of the tensor of this number in `overwritten`; where that is -1, a new one.
std::vector<at::Tensor> elementwise(at::TensorList tensors, at::TensorList scalars,
                                    at::IntArrayRef code, at::ArrayRef<double> constants,
                                    at::IntArrayRef results, at::IntArrayRef overwritten) {
  TORCH_CHECK(!tensors.empty() && code.size() % kRow == 0,
              "poptorch_emu::elementwise takes at least one tensor and rows of ", kRow,
              " numbers, but was given ", tensors.size(), " tensors and ", code.size(),
              " numbers.");
  const int64_t numel = tensors[0].numel();
  const int64_t num_tensors = static_cast<int64_t>(tensors.size());
  const int64_t num_values = num_tensors + static_cast<int64_t>(code.size()) / kRow;
  std::vector<at::Tensor> inputs;
  for (const at::Tensor& tensor : tensors) {
    TORCH_CHECK(tensor.scalar_type() == at::kFloat && tensor.numel() == numel,
                "poptorch_emu::elementwise takes tensors of ", numel, " elements of float32, not ",
                tensor.scalar_type(), tensor.sizes(), ".");
    inputs.push_back(tensor.contiguous());
  }
  TORCH_CHECK(results.size() == overwritten.size(), "poptorch_emu::elementwise got ",
              results.size(), " results, but ", overwritten.size(), " places for them.");
  std::vector<at::Tensor> outputs;
  for (int64_t number : overwritten) {
    outputs.push_back(number < 0 ? at::empty_like(inputs[0], at::MemoryFormat::Contiguous)
                                 : inputs.at(number));
  }
  const int64_t block = block_of(code);
  const int64_t size = std::min(numel, block);
  const std::vector<float> scalar_blocks = blocks_of(constants, scalars, size);
  share_out((numel + block - 1) / block, kGrain / block, [&](int64_t b, int64_t e) {
    float* const scratch = scratch_of_thread((num_values - num_tensors) * size);
    const auto place = [&](int64_t value, int64_t begin) -> float* {
      if (value < num_tensors) {
        return const_cast<float*>(inputs[value].const_data_ptr<float>()) + begin;
      }
      return scratch + (value - num_tensors) * size;
    };
    for (int64_t begin = b * block; begin < std::min(e * block, numel); begin += block) {
      const int64_t n = std::min(block, numel - begin);
      for (const int64_t* row = code.begin(); row != code.end(); row += kRow) {
        std::array<const float*, 4> in;
        for (int64_t k = 0; k < 4; ++k) {
          const int64_t operand = row[2 + k];
          in[k] =
              operand < 0 ? scalar_blocks.data() + (-1 - operand) * size : place(operand, begin);
        }
        run_row(static_cast<Operation>(row[0]), n, place(row[1], begin), in);
      }
      // At the end, since any operation may read what is overwritten.
      for (size_t i = 0; i < results.size(); ++i) {
        std::copy_n(place(results[i], begin), n, outputs[i].mutable_data_ptr<float>() + begin);
      }
    }
  });
  return outputs;
}

}  // namespace
}  // namespace poptorch_emu

#pragma GCC pop_options

TORCH_LIBRARY_FRAGMENT(poptorch_emu, m) {
  m.def(
      "elementwise(Tensor[] tensors, Tensor[] scalars, int[] code, float[] constants, int[] "
      "results, int[] overwritten) -> Tensor[]");
}

TORCH_LIBRARY_IMPL(poptorch_emu, CPU, m) { m.impl("elementwise", &poptorch_emu::elementwise); }
