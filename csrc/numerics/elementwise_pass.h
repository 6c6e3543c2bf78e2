#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace poptorch_emu {

// Returns writable memory of a tensor. PyTorch's own accessor does not allow writes to tensors that
// were created in inference mode.
template <class Number>
Number* writable_memory(const at::Tensor& tensor) {
  return const_cast<Number*>(tensor.const_data_ptr<Number>());
}

// Elementwise operations on several tensors, with the values that are results.
//
// Values are numbered: first the tensors, then the results of the operations in order. A negative
// number stands for a scalar: -1 for the first constant; the 0-d tensors in `scalars` come after.
struct ElementwiseCode {
  // Length of an operation in `operations`: its kind, its result and its operands, padded.
  static constexpr int64_t kRow = 6;

  at::IntArrayRef operations;
  at::ArrayRef<double> constants;
  at::TensorList scalars;
  at::IntArrayRef results;
  at::IntArrayRef overwritten;  // tensor that each result overwrites; -1 for a new one

  // Throws if `operations` does not consist of complete operations.
  void check() const;
  // Returns for each result the tensor that it may overwrite before all operations have run, or -1
  // if it must wait, because the tensor is used twice or is a result itself.
  std::vector<int64_t> early_places(at::TensorList tensors) const;
};

// Runs elementwise operations on a block of some float32 tensors while the block is in the cache.
// Each element goes through the same operations, in the same order and with the same rounding as in
// PyTorch's kernels, so that the bits are the same.
class ElementwisePass {
 public:
  // Prepares blocks of up to `block_size` numbers. `places` holds a tensor's number for each
  // result. The result overwrites the tensor if no later operation reads it; with -1 it does not.
  ElementwisePass(const ElementwiseCode& code, int64_t num_tensors, int64_t block_size,
                  at::IntArrayRef places);

  // Runs the operations on `n` numbers of each tensor in `tensors`, and prefetches the next
  // `num_next` numbers. `scratch` has room for `scratch_size()` numbers.
  void run(int64_t n, int64_t num_next, const std::vector<float*>& tensors, float* scratch) const;
  int64_t scratch_size() const { return scratch_size_; }
  // Returns uninitialised memory of the current thread for `count` numbers.
  static float* scratch_of_thread(int64_t count);

  // Returns the address of a result after a run.
  float* place(int64_t value, const std::vector<float*>& tensors, float* scratch) const {
    return place_of_part(value, 0, tensors, scratch);
  }

 private:
  // Location of a value: a tensor, or if that is -1, the scratch memory from `offset` on. The
  // scratch has room for a whole block, or for a part that the next part overwrites.
  struct Home {
    int64_t tensor;
    int64_t offset;
    bool is_whole;
  };

  void find_homes(at::IntArrayRef results, at::IntArrayRef places);
  bool is_read(int64_t value, const int64_t* from, const int64_t* end) const;
  const int64_t* end_of_rows(const int64_t* row) const;
  float* place_of_part(int64_t value, int64_t from, const std::vector<float*>& tensors,
                       float* scratch) const {
    const Home& home = homes_[value];
    if (home.tensor >= 0) return tensors[home.tensor] + from;
    return scratch + home.offset + (home.is_whole ? from : 0);
  }

  const at::IntArrayRef operations_;
  const int64_t num_tensors_;
  const int64_t block_size_;
  const int64_t part_size_;
  const std::vector<float> scalars_;  // each repeated to the length of a part
  std::vector<Home> homes_;           // for each value
  int64_t scratch_size_ = 0;
};

}  // namespace poptorch_emu
