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

#include "common/prefetch.h"
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
// Of single rows, which have to be fetched.
constexpr int64_t kRowGrain = 2 * kBlock;

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

// The operations, ready to be run on blocks of up to `size` numbers.
class Pass {
 public:
  Pass(at::IntArrayRef code, at::ArrayRef<double> constants, at::TensorList scalars,
       int64_t num_tensors, int64_t size)
      : code_(code),
        num_tensors_(num_tensors),
        size_(size),
        scalar_blocks_(blocks_of(constants, scalars, size)) {}

  int64_t num_made() const { return static_cast<int64_t>(code_.size()) / kRow; }

  // Runs them on `n` numbers of each tensor, which begin at `tensors`; what they make goes to
  // `scratch`, which has room for `num_made()` blocks.
  void run(int64_t n, const std::vector<float*>& tensors, float* scratch) const {
    for (const int64_t* row = code_.begin(); row != code_.end(); row += kRow) {
      std::array<const float*, 4> in;
      for (int64_t k = 0; k < 4; ++k) {
        const int64_t operand = row[2 + k];
        in[k] = operand < 0 ? scalar_blocks_.data() + (-1 - operand) * size_
                            : place(operand, tensors, scratch);
      }
      run_row(static_cast<Operation>(row[0]), n, place(row[1], tensors, scratch), in);
    }
  }

  // Where a value is after a run.
  float* place(int64_t value, const std::vector<float*>& tensors, float* scratch) const {
    return value < num_tensors_ ? tensors[value] : scratch + (value - num_tensors_) * size_;
  }

 private:
  const at::IntArrayRef code_;
  const int64_t num_tensors_;
  const int64_t size_;
  const std::vector<float> scalar_blocks_;
};

void check_code(at::TensorList tensors, at::IntArrayRef code, at::IntArrayRef results,
                at::IntArrayRef overwritten) {
  TORCH_CHECK(!tensors.empty() && code.size() % kRow == 0,
              "poptorch_emu::elementwise takes at least one tensor and rows of ", kRow,
              " numbers, but was given ", tensors.size(), " tensors and ", code.size(),
              " numbers.");
  TORCH_CHECK(results.size() == overwritten.size(), "poptorch_emu::elementwise got ",
              results.size(), " results, but ", overwritten.size(), " places for them.");
}

// Returns a tensor of float32 as one of contiguous memory.
at::Tensor input_of(const at::Tensor& tensor, int64_t numel) {
  TORCH_CHECK(tensor.scalar_type() == at::kFloat && tensor.numel() == numel,
              "poptorch_emu::elementwise takes tensors of ", numel, " elements of float32, not ",
              tensor.scalar_type(), tensor.sizes(), ".");
  return tensor.contiguous();
}

// Not by way of PyTorch, which forbids to change what was made in inference mode.
float* memory_of(const at::Tensor& tensor) {
  return const_cast<float*>(tensor.const_data_ptr<float>());
}

// Returns the values that `results` names, in the shape of the first tensor. Each takes the place
// of the tensor of this number in `overwritten`; where that is -1, a new one.
std::vector<at::Tensor> elementwise(at::TensorList tensors, at::TensorList scalars,
                                    at::IntArrayRef code, at::ArrayRef<double> constants,
                                    at::IntArrayRef results, at::IntArrayRef overwritten) {
  check_code(tensors, code, results, overwritten);
  const int64_t numel = tensors[0].numel();
  std::vector<at::Tensor> inputs;
  for (const at::Tensor& tensor : tensors) inputs.push_back(input_of(tensor, numel));
  std::vector<at::Tensor> outputs;
  for (int64_t number : overwritten) {
    outputs.push_back(number < 0 ? at::empty_like(inputs[0], at::MemoryFormat::Contiguous)
                                 : inputs.at(number));
  }
  const int64_t block = block_of(code);
  const int64_t size = std::min(numel, block);
  const Pass pass(code, constants, scalars, static_cast<int64_t>(inputs.size()), size);
  share_out((numel + block - 1) / block, kGrain / block, [&](int64_t b, int64_t e) {
    float* const scratch = scratch_of_thread(pass.num_made() * size);
    std::vector<float*> in(inputs.size());
    for (int64_t begin = b * block; begin < std::min(e * block, numel); begin += block) {
      const int64_t n = std::min(block, numel - begin);
      for (size_t i = 0; i < in.size(); ++i) in[i] = memory_of(inputs[i]) + begin;
      pass.run(n, in, scratch);
      // At the end, since any operation may read what is overwritten.
      for (size_t i = 0; i < results.size(); ++i) {
        std::copy_n(pass.place(results[i], in, scratch), n, memory_of(outputs[i]) + begin);
      }
    }
  });
  return outputs;
}

// Copies the rows of these numbers, and has the processor fetch as many of the next ones, of which
// there are `num_known` in all: it does not guess where single rows lie.
void take_rows(const at::Tensor& matrix, const int64_t* number, int64_t count, int64_t num_known,
               float* rows) {
  const int64_t width = matrix.size(1);
  const float* const memory = memory_of(matrix);
  for (int64_t row = 0; row < count; ++row) {
    if (row + count < num_known) {
      prefetch(memory + number[row + count] * width, width * static_cast<int64_t>(sizeof(float)));
    }
    std::copy_n(memory + number[row] * width, width, rows + row * width);
  }
}

void put_rows(const at::Tensor& matrix, const int64_t* number, int64_t count, const float* rows) {
  const int64_t width = matrix.size(1);
  float* const memory = memory_of(matrix);
  for (int64_t row = 0; row < count; ++row) {
    std::copy_n(rows + row * width, width, memory + number[row] * width);
  }
}

// Returns a matrix of which single rows are overwritten.
at::Tensor matrix_of(const at::Tensor& tensor, int64_t width) {
  TORCH_CHECK(tensor.scalar_type() == at::kFloat && tensor.dim() == 2 && tensor.size(1) == width &&
                  tensor.is_contiguous(),
              "poptorch_emu::elementwise_rows overwrites rows of ", width,
              " numbers of contiguous matrices of float32, not of ", tensor.scalar_type(),
              tensor.sizes(), ".");
  return tensor;
}

// The same on single rows of matrices, those of the numbers in `rows`, each of which is there once.
// The tensors that are overwritten are such matrices; the others hold these rows alone. Returns the
// matrices.
std::vector<at::Tensor> elementwise_rows(at::TensorList tensors, at::TensorList scalars,
                                         at::IntArrayRef code, at::ArrayRef<double> constants,
                                         at::IntArrayRef results, at::IntArrayRef overwritten,
                                         const at::Tensor& rows) {
  check_code(tensors, code, results, overwritten);
  const int64_t num_inputs = static_cast<int64_t>(tensors.size());
  const int64_t width = tensors[0].size(-1);
  const int64_t num_rows = rows.numel();
  std::vector<bool> is_matrix(num_inputs);
  for (int64_t number : overwritten) is_matrix.at(number) = true;
  std::vector<at::Tensor> inputs;
  for (int64_t i = 0; i < num_inputs; ++i) {
    inputs.push_back(is_matrix[i] ? matrix_of(tensors[i], width)
                                  : input_of(tensors[i], num_rows * width));
  }
  const int64_t block = std::max<int64_t>(1, block_of(code) / std::max<int64_t>(1, width));
  const int64_t size = block * width;
  const Pass pass(code, constants, scalars, num_inputs, size);
  const auto* const number = rows.const_data_ptr<int64_t>();
  const auto run_blocks = [&](int64_t b, int64_t e) {
    float* const scratch = scratch_of_thread((num_inputs + pass.num_made()) * size);
    float* const made = scratch + num_inputs * size;
    const int64_t last = std::min(e * block, num_rows);
    std::vector<float*> in(num_inputs);
    for (int64_t begin = b * block; begin < last; begin += block) {
      const int64_t count = std::min(block, last - begin);
      for (int64_t i = 0; i < num_inputs; ++i) {
        in[i] = is_matrix[i] ? scratch + i * size : memory_of(inputs[i]) + begin * width;
        if (is_matrix[i]) take_rows(inputs[i], number + begin, count, last - begin, in[i]);
      }
      pass.run(count * width, in, made);
      for (size_t i = 0; i < results.size(); ++i) {
        const float* const values = pass.place(results[i], in, made);
        put_rows(inputs[overwritten[i]], number + begin, count, values);
      }
    }
  };
  const int64_t per_part = std::max<int64_t>(1, kRowGrain / std::max<int64_t>(1, size));
  share_out((num_rows + block - 1) / block, per_part, run_blocks);
  std::vector<at::Tensor> outputs;
  for (int64_t each : overwritten) outputs.push_back(inputs[each]);
  return outputs;
}

}  // namespace
}  // namespace poptorch_emu

#pragma GCC pop_options

TORCH_LIBRARY_FRAGMENT(poptorch_emu, m) {
  m.def(
      "elementwise(Tensor[] tensors, Tensor[] scalars, int[] code, float[] constants, int[] "
      "results, int[] overwritten) -> Tensor[]");
  m.def(
      "elementwise_rows(Tensor[] tensors, Tensor[] scalars, int[] code, float[] constants, int[] "
      "results, int[] overwritten, Tensor rows) -> Tensor[]");
}

TORCH_LIBRARY_IMPL(poptorch_emu, CPU, m) {
  m.impl("elementwise", &poptorch_emu::elementwise);
  m.impl("elementwise_rows", &poptorch_emu::elementwise_rows);
}
