#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace poptorch_emu {

// Where the numbers of a tensor lie, to be changed. PyTorch's own accessor forbids to change what
// was made in inference mode.
template <class Number>
Number* writable_memory(const at::Tensor& tensor) {
  return const_cast<Number*>(tensor.const_data_ptr<Number>());
}

// Elementwise operations on some tensors, and which of their values are results.
//
// A value has a number: the tensors come first, then what the operations make, one after the other.
// A negative number stands for a scalar: -1 for the first constant, the 0-d tensors of `scalars`
// behind the constants.
struct ElementwiseCode {
  // This many numbers of `operations` make an operation: what it is, the value that it makes and
  // those that it takes, as many as it needs.
  static constexpr int64_t kRow = 6;

  at::IntArrayRef operations;
  at::ArrayRef<double> constants;
  at::TensorList scalars;
  at::IntArrayRef results;
  at::IntArrayRef overwritten;  // by result, the tensor whose place it takes; -1 for a new one

  // Throws where numbers are missing.
  void check() const;
  // By result, the tensor in whose place it may be made before all operations have been run; -1
  // where that has to wait, since the tensor is there twice or is a result itself.
  std::vector<int64_t> early_places(at::TensorList tensors) const;
};

// Runs elementwise operations on a block of some tensors of float32, while the block is in the
// cache. Each element sees the same operations, in the same order and with the same roundings as in
// PyTorch's kernels, so the bits are the same.
class ElementwisePass {
 public:
  // For blocks of up to `block_size` numbers. A result is made in its place, which `places` gives
  // as a tensor's number, if no operation reads the tensor afterwards; for -1 it is not.
  ElementwisePass(const ElementwiseCode& code, int64_t num_tensors, int64_t block_size,
                  at::IntArrayRef places);

  // Runs the operations on `n` numbers of each tensor, which begin at `tensors`; the `num_next`
  // numbers behind them are fetched meanwhile. `scratch` has room for `scratch_size()` numbers.
  void run(int64_t n, int64_t num_next, const std::vector<float*>& tensors, float* scratch) const;
  int64_t scratch_size() const { return scratch_size_; }
  // Memory of the current thread for `count` numbers, which may be anything.
  static float* scratch_of_thread(int64_t count);

  // Where a result is after a run.
  float* place(int64_t value, const std::vector<float*>& tensors, float* scratch) const {
    return place_of_part(value, 0, tensors, scratch);
  }

 private:
  // Where a value is: in a tensor, or, where that is -1, from `offset` of the scratch on. There a
  // whole block has room, or a part of it, which the next part overwrites.
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
  const std::vector<float> scalars_;  // each as a part of equal numbers, so that operands are alike
  std::vector<Home> homes_;           // by value
  int64_t scratch_size_ = 0;
};

}  // namespace poptorch_emu
