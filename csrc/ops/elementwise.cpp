// The operators that run elementwise operations in one pass over their tensors.
//
// The update of a weight is some ten operations; each of them by itself reads and writes whole
// tensors, which takes as long as the memory is slow. Here a block of all tensors goes through all
// operations while it is in the cache.

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "common/prefetch.h"
#include "common/sharing.h"
#include "numerics/half_numbers.h"
#include "numerics/row_summands.h"
#include "ops/elementwise_pass.h"

namespace poptorch_emu {
namespace {

constexpr int64_t kRow = ElementwisePass::kRow;
// Numbers of a block: a dozen blocks fit into a core's second cache.
constexpr int64_t kBlock = 8192;
// Of single rows, which are copied before, so that they fit into the first.
constexpr int64_t kBlockOfRows = 512;
// Below so many elements a second thread costs more than it gives.
constexpr int64_t kGrain = 32768;
// Of single rows, which have to be fetched.
constexpr int64_t kRowGrain = 8192;

// Memory of the current thread for so many numbers, which may be anything.
float* scratch_of_thread(int64_t count) {
  thread_local std::vector<float> scratch;
  if (static_cast<int64_t>(scratch.size()) < count) scratch.resize(count);
  return scratch.data();
}

void check_code(at::TensorList tensors, at::IntArrayRef code, at::IntArrayRef results,
                at::IntArrayRef overwritten) {
  TORCH_CHECK(!tensors.empty() && code.size() % kRow == 0,
              "poptorch_emu::elementwise takes at least one tensor and rows of ", kRow,
              " numbers, but was given ", tensors.size(), " tensors and ", code.size(),
              " numbers.");
  TORCH_CHECK(results.size() == overwritten.size(), "poptorch_emu::elementwise got ",
              results.size(), " results, but ", overwritten.size(), " places for them.");
}

// Which tensor's place each result may take before a pass has ended; -1 where it may not.
std::vector<int64_t> places_of(const std::vector<at::Tensor>& tensors, at::IntArrayRef results,
                               at::IntArrayRef overwritten) {
  std::vector<int64_t> places = overwritten.vec();
  for (int64_t& number : places) {
    if (number < 0) continue;
    const auto is_same = [memory = tensors[number].const_data_ptr()](const at::Tensor& tensor) {
      return tensor.const_data_ptr() == memory;
    };
    // A tensor may be there twice, or be a result itself.
    if (std::count_if(tensors.begin(), tensors.end(), is_same) > 1 ||
        std::find(results.begin(), results.end(), number) != results.end()) {
      number = -1;
    }
  }
  return places;
}

bool is_half(const at::Tensor& tensor) { return tensor.scalar_type() == at::kHalf; }

// Returns a tensor of float32, or of float16 where that is allowed, as one of contiguous memory.
at::Tensor input_of(const at::Tensor& tensor, int64_t numel, bool may_be_half) {
  const bool has_type = tensor.scalar_type() == at::kFloat || (may_be_half && is_half(tensor));
  TORCH_CHECK(has_type && tensor.numel() == numel, "poptorch_emu::elementwise takes tensors of ",
              numel, " elements of float32", may_be_half ? " or float16" : "", ", not ",
              tensor.scalar_type(), tensor.sizes(), ".");
  return tensor.contiguous();
}

// Not by way of PyTorch, which forbids to change what was made in inference mode.
float* memory_of(const at::Tensor& tensor) {
  return const_cast<float*>(tensor.const_data_ptr<float>());
}
at::Half* half_memory_of(const at::Tensor& tensor) {
  return const_cast<at::Half*>(tensor.const_data_ptr<at::Half>());
}

// Takes one group of tensors after the other through the operations. The pass is made once, but for
// groups that differ in what may be overwritten.
class Groups {
 public:
  Groups(at::TensorList scalars, at::IntArrayRef code, at::ArrayRef<double> constants,
         at::IntArrayRef results, at::IntArrayRef overwritten, int64_t block)
      : scalars_(scalars),
        code_(code),
        constants_(constants),
        results_(results),
        overwritten_(overwritten),
        block_(block) {}

  // Adds the results of a group to `outputs`.
  void run(at::TensorList tensors, std::vector<at::Tensor>& outputs) {
    const int64_t numel = tensors[0].numel();
    std::vector<at::Tensor> inputs;
    inputs.reserve(tensors.size());
    for (const at::Tensor& tensor : tensors) inputs.push_back(input_of(tensor, numel, true));
    const size_t first = outputs.size();
    for (int64_t number : overwritten_) {
      outputs.push_back(number < 0 ? at::empty(tensors[0].sizes(), at::TensorOptions(at::kFloat))
                                   : inputs.at(number));
    }
    const ElementwisePass& pass = pass_for(inputs);
    const int64_t num_halves = std::count_if(inputs.begin(), inputs.end(), is_half);
    const auto run_blocks = [&](int64_t b, int64_t e) {
      float* const widened = scratch_of_thread(num_halves * kBlock + pass.scratch_size());
      float* const scratch = widened + num_halves * kBlock;
      std::vector<float*> in(inputs.size());
      const int64_t end = std::min(e * kBlock, numel);
      for (int64_t begin = b * kBlock; begin < end; begin += kBlock) {
        const int64_t n = std::min(kBlock, end - begin);
        float* next_widened = widened;
        for (size_t i = 0; i < in.size(); ++i) {
          if (is_half(inputs[i])) {
            in[i] = std::exchange(next_widened, next_widened + kBlock);
            widen_halves(half_memory_of(inputs[i]) + begin, n, in[i]);
          } else {
            in[i] = memory_of(inputs[i]) + begin;
          }
        }
        pass.run(n, std::min(kBlock, end - begin - n), in, scratch);
        // What could not be made in its place, since some operation reads what it overwrites.
        for (size_t i = 0; i < results_.size(); ++i) {
          const float* const values = pass.place(results_[i], in, scratch);
          const at::Tensor& output = outputs[first + i];
          if (is_half(output)) {
            narrow_to_halves(values, n, half_memory_of(output) + begin);
          } else if (values != memory_of(output) + begin) {
            std::copy_n(values, n, memory_of(output) + begin);
          }
        }
      }
    };
    share_out((numel + kBlock - 1) / kBlock, kGrain / kBlock, run_blocks);
  }

 private:
  const ElementwisePass& pass_for(const std::vector<at::Tensor>& inputs) {
    std::vector<int64_t> places = places_of(inputs, results_, overwritten_);
    if (!pass_.has_value() || places != places_) {
      places_ = std::move(places);
      pass_.emplace(code_, constants_, scalars_, static_cast<int64_t>(inputs.size()), block_,
                    results_, places_);
    }
    return *pass_;
  }

  const at::TensorList scalars_;
  const at::IntArrayRef code_;
  const at::ArrayRef<double> constants_;
  const at::IntArrayRef results_, overwritten_;
  const int64_t block_;
  std::optional<ElementwisePass> pass_;
  std::vector<int64_t> places_;
};

// Returns the values that `results` names, in the shape of the first tensor. Tensors are of float32
// or float16, values of float32 but for those in the place of one of float16. Each takes the place
// of the tensor of this number in `overwritten`; where that is -1, a new one. `tensors` are those
// of so many groups, as many of each, one group after the other, and so are the results.
std::vector<at::Tensor> elementwise(at::TensorList tensors, at::TensorList scalars,
                                    at::IntArrayRef code, at::ArrayRef<double> constants,
                                    at::IntArrayRef results, at::IntArrayRef overwritten,
                                    int64_t num_groups) {
  check_code(tensors, code, results, overwritten);
  const auto num_tensors = static_cast<int64_t>(tensors.size());
  TORCH_CHECK(num_groups > 0 && num_tensors % num_groups == 0,
              "poptorch_emu::elementwise cannot make ", num_groups, " equal groups of ",
              num_tensors, " tensors.");
  const int64_t width = num_tensors / num_groups;
  int64_t longest = 0;
  for (int64_t i = 0; i < num_tensors; i += width) longest = std::max(longest, tensors[i].numel());
  Groups groups(scalars, code, constants, results, overwritten, std::min(longest, kBlock));
  std::vector<at::Tensor> outputs;
  outputs.reserve(num_groups * results.size());
  for (int64_t i = 0; i < num_tensors; i += width) groups.run(tensors.slice(i, width), outputs);
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
      prefetch_to_write(memory + number[row + count] * width,
                        width * static_cast<int64_t>(sizeof(float)));
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

// The operations on single rows of matrices, which are overwritten. What the other tensors have for
// these rows is asked for while a block of rows is in the cache.
class SingleRows {
 public:
  SingleRows(at::TensorList tensors, at::TensorList scalars, at::IntArrayRef code,
             at::ArrayRef<double> constants, at::IntArrayRef results, at::IntArrayRef overwritten)
      : width_(tensors[0].size(-1)),
        block_(std::max<int64_t>(1, kBlockOfRows / std::max<int64_t>(1, width_))),
        results_(results),
        overwritten_(overwritten),
        tensors_(tensors.vec()),
        is_matrix_(tensors.size()) {
    for (int64_t number : overwritten) {
      is_matrix_.at(number) = true;
      tensors_[number] = matrix_of(tensors[number], width_);
    }
    pass_.emplace(code, constants, scalars, tensors.size(), block_ * width_, results,
                  places_of(tensors_, results, overwritten));
  }

  int64_t width() const { return width_; }
  // So many rows go through the operations at once.
  int64_t block() const { return block_; }
  // Replaces each tensor that is no matrix by what `use` makes of it.
  template <class Use>
  void for_each_other(const Use& use) {
    for (size_t i = 0; i < tensors_.size(); ++i) {
      if (!is_matrix_[i]) tensors_[i] = use(tensors_[i]);
    }
  }

  // Changes [begin, end) of the rows of these numbers. `read(other, begin, end, memory)` returns
  // where the numbers of some rows are, by another tensor; it may write them to `memory`.
  template <class Read>
  void run(const int64_t* number, int64_t begin, int64_t end, const Read& read) const {
    const int64_t size = block_ * width_;
    const auto num_inputs = static_cast<int64_t>(tensors_.size());
    float* const scratch = scratch_of_thread(num_inputs * size + pass_->scratch_size());
    float* const made = scratch + num_inputs * size;
    std::vector<float*> in(num_inputs);
    for (; begin < end; begin += block_) {
      const int64_t count = std::min(block_, end - begin);
      for (int64_t i = 0; i < num_inputs; ++i) {
        in[i] = scratch + i * size;
        if (is_matrix_[i]) {
          take_rows(tensors_[i], number + begin, count, end - begin, in[i]);
        } else {
          in[i] = read(tensors_[i], begin, begin + count, in[i]);
        }
      }
      pass_->run(count * width_, /*num_next=*/0, in, made);
      for (size_t i = 0; i < results_.size(); ++i) {
        const float* const values = pass_->place(results_[i], in, made);
        put_rows(tensors_[overwritten_[i]], number + begin, count, values);
      }
    }
  }

 private:
  const int64_t width_, block_;
  const at::IntArrayRef results_, overwritten_;
  std::vector<at::Tensor> tensors_;
  std::vector<bool> is_matrix_;
  std::optional<ElementwisePass> pass_;
};

// On the rows of these numbers, which the other tensors hold.
void run_on_rows(SingleRows& single, const at::Tensor& rows) {
  const int64_t num_rows = rows.numel(), width = single.width(), block = single.block();
  single.for_each_other(
      [&](const at::Tensor& other) { return input_of(other, num_rows * width, false); });
  const auto* const number = rows.const_data_ptr<int64_t>();
  const auto read = [&](const at::Tensor& other, int64_t begin, int64_t /*end*/, float*) {
    return memory_of(other) + begin * width;
  };
  const int64_t per_part = std::max<int64_t>(1, kRowGrain / std::max<int64_t>(1, block * width));
  share_out((num_rows + block - 1) / block, per_part, [&](int64_t begin, int64_t end) {
    single.run(number, begin * block, std::min(end * block, num_rows), read);
  });
}

// On the rows that have summands, whose sums the other tensors stand for.
void run_on_sums(SingleRows& single, const RowSummands& summands) {
  single.for_each_other([&](const at::Tensor& other) {
    TORCH_CHECK(RowSummands::behind(other) == &summands && summands.width() == single.width(),
                "poptorch_emu::elementwise_rows takes the sums of the rows that it changes.");
    return other;
  });
  const int64_t num_numbers = std::max<int64_t>(1, summands.count() * single.width());
  const int64_t per_part = kRowGrain * RowSummands::kNumParts / num_numbers + 1;
  share_out(RowSummands::kNumParts, per_part, [&](int64_t begin, int64_t end) {
    thread_local RowSummands::Part part;
    const auto read = [](const at::Tensor&, int64_t first, int64_t last, float* memory) {
      part.write_sums(first, last, memory);
      return memory;
    };
    for (int64_t index = begin; index < end; ++index) {
      summands.find(index, part);
      single.run(part.numbers().data(), 0, part.size(), read);
    }
  });
}

// The same on single rows of matrices, those of the numbers in `rows`, each of which is there once.
// The tensors that are overwritten are such matrices; the others hold these rows alone. Where
// `rows` stands for summands, so do the others: the rows are those that have some, and the others
// are their sums. Returns the matrices.
std::vector<at::Tensor> elementwise_rows(at::TensorList tensors, at::TensorList scalars,
                                         at::IntArrayRef code, at::ArrayRef<double> constants,
                                         at::IntArrayRef results, at::IntArrayRef overwritten,
                                         const at::Tensor& rows) {
  check_code(tensors, code, results, overwritten);
  SingleRows single(tensors, scalars, code, constants, results, overwritten);
  if (const RowSummands* const summands = RowSummands::behind(rows)) {
    run_on_sums(single, *summands);
  } else {
    run_on_rows(single, rows);
  }
  std::vector<at::Tensor> outputs;
  for (int64_t each : overwritten) outputs.push_back(tensors[each]);
  return outputs;
}

}  // namespace
}  // namespace poptorch_emu

TORCH_LIBRARY_FRAGMENT(poptorch_emu, m) {
  m.def(
      "elementwise(Tensor[] tensors, Tensor[] scalars, int[] code, float[] constants, int[] "
      "results, int[] overwritten, int num_groups=1) -> Tensor[]");
  m.def(
      "elementwise_rows(Tensor[] tensors, Tensor[] scalars, int[] code, float[] constants, int[] "
      "results, int[] overwritten, Tensor rows) -> Tensor[]");
}

TORCH_LIBRARY_IMPL(poptorch_emu, CPU, m) {
  m.impl("elementwise", &poptorch_emu::elementwise);
  m.impl("elementwise_rows", &poptorch_emu::elementwise_rows);
}
