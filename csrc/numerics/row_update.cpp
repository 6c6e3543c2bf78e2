#include "numerics/row_update.h"

#include <algorithm>

#include "common/prefetch.h"
#include "common/sharing.h"

namespace poptorch_emu {
namespace {

// Numbers in a block: the copies of all its rows fit into a core's first-level cache.
constexpr int64_t kNumbersPerBlock = 512;
// Below this number of prefetched elements a second thread costs more time than it saves.
constexpr int64_t kNumbersPerShare = 8192;

void check_overwritten(at::TensorList matrices, at::IntArrayRef overwritten) {
  for (int64_t number : overwritten) {
    TORCH_CHECK(number >= 0 && number < static_cast<int64_t>(matrices.size()),
                "poptorch_emu::elementwise_rows overwrites one of ", matrices.size(),
                " matrices with each result, not number ", number, ".");
  }
}

void check_matrices(at::TensorList matrices, int64_t width) {
  for (const at::Tensor& matrix : matrices) {
    TORCH_CHECK(matrix.scalar_type() == at::kFloat && matrix.dim() == 2 &&
                    matrix.size(1) == width && matrix.is_contiguous(),
                "poptorch_emu::elementwise_rows takes contiguous matrices of float32 with rows of ",
                width, " numbers, not ", matrix.scalar_type(), matrix.sizes(), ".");
  }
}

// Copies `count` rows to `rows`, and prefetches as many of the next rows, because the processor
// cannot predict their positions; `num_known` is the number of all remaining rows.
void take_rows(const at::Tensor& matrix, const int64_t* number, int64_t count, int64_t num_known,
               float* rows) {
  const int64_t width = matrix.size(1);
  const float* const memory = writable_memory<float>(matrix);
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
  float* const memory = writable_memory<float>(matrix);
  for (int64_t row = 0; row < count; ++row) {
    std::copy_n(rows + row * width, width, memory + number[row] * width);
  }
}

class RowUpdate {
 public:
  RowUpdate(int64_t width, at::TensorList matrices, const ElementwiseCode& code)
      : width_(width),
        rows_per_block_(std::max<int64_t>(1, kNumbersPerBlock / width)),
        matrices_(matrices),
        code_(code),
        pass_(code, static_cast<int64_t>(matrices.size()) + 1, rows_per_block_ * width,
              code.early_places(matrices)) {}

  void run(const RowSummands::Part& part) const {
    const int64_t size = rows_per_block_ * width_;
    const size_t num_matrices = matrices_.size();
    const auto num_tensors = static_cast<int64_t>(num_matrices) + 1;
    float* const blocks =
        ElementwisePass::scratch_of_thread(num_tensors * size + pass_.scratch_size());
    float* const scratch = blocks + num_tensors * size;
    std::vector<float*> tensors;
    for (int64_t i = 0; i < num_tensors; ++i) tensors.push_back(blocks + i * size);
    for (int64_t begin = 0; begin < part.size(); begin += rows_per_block_) {
      const int64_t count = std::min(rows_per_block_, part.size() - begin);
      const int64_t* const number = part.numbers().data() + begin;
      for (size_t i = 0; i < num_matrices; ++i) {
        take_rows(matrices_[i], number, count, part.size() - begin, tensors[i]);
      }
      part.write_sums(begin, begin + count, tensors.back());
      pass_.run(count * width_, /*num_next=*/0, tensors, scratch);
      for (size_t i = 0; i < code_.results.size(); ++i) {
        const float* const values = pass_.place(code_.results[i], tensors, scratch);
        put_rows(matrices_[code_.overwritten[i]], number, count, values);
      }
    }
  }

 private:
  const int64_t width_, rows_per_block_;
  const at::TensorList matrices_;
  const ElementwiseCode& code_;
  const ElementwisePass pass_;
};

}  // namespace

std::vector<at::Tensor> update_rows(const RowSummands& summands, at::TensorList matrices,
                                    const ElementwiseCode& code) {
  code.check();
  check_overwritten(matrices, code.overwritten);
  std::vector<at::Tensor> results;
  for (int64_t number : code.overwritten) results.push_back(matrices[number]);
  const int64_t num_numbers = summands.count() * summands.width();
  if (num_numbers == 0) return results;
  check_matrices(matrices, summands.width());
  const RowUpdate update(summands.width(), matrices, code);
  const int64_t per_share = kNumbersPerShare * RowSummands::kNumParts / num_numbers + 1;
  share_out(RowSummands::kNumParts, per_share, [&](int64_t begin, int64_t end) {
    thread_local RowSummands::Part part;
    for (int64_t index = begin; index < end; ++index) {
      summands.find(index, part);
      update.run(part);
    }
  });
  return results;
}

}  // namespace poptorch_emu
