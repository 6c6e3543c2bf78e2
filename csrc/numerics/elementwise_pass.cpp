// A pass takes parts of a block through all operations between two square roots, so that each
// result is still in the first-level cache when the next operation reads it.

#include "numerics/elementwise_pass.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/sqrt.h>

#include <algorithm>
#include <array>

#include "common/for_each_cpu.h"
#include "common/prefetch.h"
#include "numerics/half_numbers.h"

#pragma GCC push_options
#pragma GCC optimize("O3,no-math-errno,fp-contract=off")

namespace poptorch_emu {
namespace {

// Size of a part of a block: all results for one part fit into a core's first-level cache. Formulas
// of optimisers with square roots have more results, so their parts are smaller.
constexpr int64_t kPart = 512;
constexpr int64_t kPartWithRoots = 256;

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
  kRound,    // a, rounded to float16
};

namespace kernels {

// A result may overwrite an operand in place; otherwise the two must not overlap.
using In = const float*;
using Out = float*;

POPTORCH_EMU_FOR_EACH_CPU void copy(int64_t n, Out out, In a) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) out[i] = a[i];
}
POPTORCH_EMU_FOR_EACH_CPU void neg(int64_t n, Out out, In a) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) out[i] = -a[i];
}
// Calls PyTorch's square root; it often comes from a library and rounds unlike the processor.
void sqrt(int64_t n, float* out, const float* a) {
  at::Tensor result = at::from_blob(out, {n}, at::kFloat);
  at::sqrt_out(result, at::from_blob(const_cast<float*>(a), {n}, at::kFloat));
}
POPTORCH_EMU_FOR_EACH_CPU void mul(int64_t n, Out out, In a, In b) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) out[i] = a[i] * b[i];
}
POPTORCH_EMU_FOR_EACH_CPU void div(int64_t n, Out out, In a, In b) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) out[i] = a[i] / b[i];
}
POPTORCH_EMU_FOR_EACH_CPU void add(int64_t n, Out out, In a, In b, In c) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) out[i] = __builtin_fmaf(b[i], c[i], a[i]);
}
POPTORCH_EMU_FOR_EACH_CPU void addcmul(int64_t n, Out out, In a, In b, In c, In d) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) out[i] = __builtin_fmaf(d[i] * b[i], c[i], a[i]);
}
POPTORCH_EMU_FOR_EACH_CPU void addcdiv(int64_t n, Out out, In a, In b, In c, In d) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) out[i] = a[i] + d[i] * b[i] / c[i];
}
POPTORCH_EMU_FOR_EACH_CPU void lerp(int64_t n, Out out, In a, In b, In c) {
#pragma GCC ivdep
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
    case Operation::kRound:
      return round_to_half(in[0], n, out);
  }
  TORCH_CHECK(false, "poptorch_emu::elementwise knows no operation ",
              static_cast<int64_t>(operation), ".");
}

int64_t num_operands(Operation operation) {
  switch (operation) {
    case Operation::kCopy:
    case Operation::kNeg:
    case Operation::kSqrt:
    case Operation::kRound:
      return 1;
    case Operation::kMul:
    case Operation::kDiv:
      return 2;
    case Operation::kAdd:
    case Operation::kLerp:
      return 3;
    case Operation::kAddcmul:
    case Operation::kAddcdiv:
      return 4;
  }
  return 0;
}

// Returns whether an operation processes a whole block at once, which only the square root does.
bool is_for_blocks(const int64_t* row) {
  return static_cast<Operation>(row[0]) == Operation::kSqrt && row[2] >= 0;
}

int64_t part_of(at::IntArrayRef code) {
  for (const int64_t* row = code.begin(); row != code.end(); row += ElementwiseCode::kRow) {
    if (is_for_blocks(row)) return kPartWithRoots;
  }
  return kPart;
}

// Returns each scalar repeated `size` times, so that it can be read like a tensor.
std::vector<float> parts_of(at::ArrayRef<double> constants, at::TensorList scalars, int64_t size) {
  std::vector<float> parts;
  parts.reserve((constants.size() + scalars.size()) * size);
  for (double constant : constants) parts.insert(parts.end(), size, static_cast<float>(constant));
  for (const at::Tensor& scalar : scalars) {
    TORCH_CHECK(scalar.scalar_type() == at::kFloat && scalar.numel() == 1,
                "poptorch_emu::elementwise takes scalars of float32, not ", scalar.scalar_type(),
                scalar.sizes(), ".");
    parts.insert(parts.end(), size, *scalar.const_data_ptr<float>());
  }
  return parts;
}

}  // namespace

void ElementwiseCode::check() const {
  TORCH_CHECK(operations.size() % kRow == 0, "poptorch_emu::elementwise takes rows of ", kRow,
              " numbers, but was given ", operations.size(), " numbers.");
  TORCH_CHECK(results.size() == overwritten.size(), "poptorch_emu::elementwise got ",
              results.size(), " results, but ", overwritten.size(), " places for them.");
}

std::vector<int64_t> ElementwiseCode::early_places(at::TensorList tensors) const {
  std::vector<int64_t> places = overwritten.vec();
  for (int64_t& number : places) {
    if (number < 0) continue;
    const auto is_same = [memory = tensors[number].const_data_ptr()](const at::Tensor& tensor) {
      return tensor.const_data_ptr() == memory;
    };
    if (std::count_if(tensors.begin(), tensors.end(), is_same) > 1 ||
        std::find(results.begin(), results.end(), number) != results.end()) {
      number = -1;
    }
  }
  return places;
}

ElementwisePass::ElementwisePass(const ElementwiseCode& code, int64_t num_tensors,
                                 int64_t block_size, at::IntArrayRef places)
    : operations_(code.operations),
      num_tensors_(num_tensors),
      block_size_(block_size),
      part_size_(std::min(block_size, part_of(code.operations))),
      scalars_(parts_of(code.constants, code.scalars, part_size_)) {
  find_homes(code.results, places);
}

float* ElementwisePass::scratch_of_thread(int64_t count) {
  thread_local std::vector<float> scratch;
  if (static_cast<int64_t>(scratch.size()) < count) scratch.resize(count);
  return scratch.data();
}

bool ElementwisePass::is_read(int64_t value, const int64_t* from, const int64_t* end) const {
  for (const int64_t* row = from; row < end; row += ElementwiseCode::kRow) {
    const int64_t* const operands = row + 2;
    const int64_t* const last = operands + num_operands(static_cast<Operation>(row[0]));
    if (std::find(operands, last, value) != last) return true;
  }
  return false;
}

void ElementwisePass::find_homes(at::IntArrayRef results, at::IntArrayRef places) {
  for (int64_t tensor = 0; tensor < num_tensors_; ++tensor) homes_.push_back({tensor, 0, true});
  const int64_t* end = operations_.begin();
  for (const int64_t* row = operations_.begin(); row != operations_.end();
       row += ElementwiseCode::kRow) {
    if (row == end) end = end_of_rows(row);
    const auto value = static_cast<int64_t>(homes_.size());
    const auto* const result = std::find(results.begin(), results.end(), value);
    const int64_t tensor = result == results.end() ? -1 : places[result - results.begin()];
    if (tensor >= 0 && !is_read(tensor, row + ElementwiseCode::kRow, operations_.end())) {
      homes_.push_back({tensor, 0, true});
      continue;
    }
    const bool is_whole =
        is_for_blocks(row) || result != results.end() || is_read(value, end, operations_.end());
    homes_.push_back({-1, scratch_size_, is_whole});
    scratch_size_ += is_whole ? block_size_ : part_size_;
  }
}

// Returns the end of the operations through which one part goes before the next part.
const int64_t* ElementwisePass::end_of_rows(const int64_t* row) const {
  if (is_for_blocks(row)) return row + ElementwiseCode::kRow;
  while (row != operations_.end() && !is_for_blocks(row)) row += ElementwiseCode::kRow;
  return row;
}

void ElementwisePass::run(int64_t n, int64_t num_next, const std::vector<float*>& tensors,
                          float* scratch) const {
  const auto run_part = [&](const int64_t* row, int64_t from, int64_t count) {
    std::array<const float*, 4> in;
    for (int64_t k = 0; k < 4; ++k) {
      const int64_t operand = row[2 + k];
      in[k] = operand < 0 ? scalars_.data() + (-1 - operand) * part_size_
                          : place_of_part(operand, from, tensors, scratch);
    }
    float* const out = place_of_part(row[1], from, tensors, scratch);
    run_row(static_cast<Operation>(row[0]), count, out, in);
  };
  for (const int64_t* row = operations_.begin(); row != operations_.end();) {
    const int64_t* const end = end_of_rows(row);
    const int64_t step = is_for_blocks(row) ? n : part_size_;
    for (int64_t from = 0; from < n; from += step) {
      if (row == operations_.begin() && from < num_next) {
        const int64_t count = std::min(step, num_next - from);
        for (const float* tensor : tensors) {
          prefetch<2>(tensor + n + from, count * static_cast<int64_t>(sizeof(float)));
        }
      }
      for (const int64_t* each = row; each != end; each += ElementwiseCode::kRow) {
        run_part(each, from, std::min(step, n - from));
      }
    }
    row = end;
  }
}

}  // namespace poptorch_emu

#pragma GCC pop_options
