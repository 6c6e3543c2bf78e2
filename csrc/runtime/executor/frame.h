#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

#include <functional>
#include <string>
#include <vector>

#include "numerics/gemm/column_product.h"
#include "numerics/row_summands.h"
#include "program/program.h"

namespace poptorch_emu {

// Calls a function of the host by its name; may wait for the thread that serves the host.
using HostCaller =
    std::function<std::vector<at::Tensor>(const std::string&, std::vector<at::Tensor>)>;

// What instructions do with the sums of gradients.
struct SumAccess {
  // Adds the product of two matrices to a sum, as a micro-batch's part of it.
  std::function<void(AccumulatorId, int64_t micro_batch, const Product&)> add_product;
  // Returns what was added to single rows of a sum in this window.
  std::function<const RowSummands&(AccumulatorId)> summands;
};

// Runs the instructions of one segment on one virtual IPU. Owns the registers; they are empty
// between runs. Used by one thread at a time.
//
// Of several lanes of a segment, all but the first count references on their own: two cores that
// count those of one tensor, or of one list among the arguments, wait for each other each time.
class Frame {
 public:
  Frame(const Segment& segment, int64_t lane, bool checks_floating_point, HostCaller call_host,
        SumAccess sums);

  at::Tensor& operator[](RegisterId id) { return registers_[id.value]; }

  // Returns a tensor that other frames may read at the same time, for the use of this one; by the
  // register that it fills, or a part of it.
  const at::Tensor& own(RegisterId id, const at::Tensor& shared);
  // Lets go of the one for this register, or of any that is not in the memory of this tensor.
  void forget(RegisterId id);
  void keep_only(RegisterId id, const at::Tensor& shared);

  // Throws `Error` with the instruction's origin and arguments when a kernel fails, or when it
  // raises a floating-point exception and those are checked.
  void run(int64_t micro_batch, int64_t replica);

  // Releases every register, also after an error.
  void clear();

 private:
  using Tensors = std::vector<at::Tensor>;

  void run_code(const std::vector<Instruction>& code, Tensors& registers, torch::jit::Stack& stack);
  void run_instruction(const Instruction& instruction, Tensors& registers,
                       torch::jit::Stack& stack);
  void execute(const Instruction& instruction, Tensors& registers, torch::jit::Stack& stack);
  [[noreturn]] void fail(const Instruction& instruction, const Tensors& registers,
                         const std::string& cause) const;

  void run_add_product(const Instruction& instruction, torch::jit::Stack& stack);
  void run_update_rows(const Instruction& instruction, torch::jit::Stack& stack);
  // In control.cpp. Each replaces the arguments on the stack by one list of results.
  void run_for_loop(const Instruction& instruction, torch::jit::Stack& stack);
  void run_cond(const Instruction& instruction, torch::jit::Stack& stack);
  void run_host_call(torch::jit::Stack& stack);
  Tensors run_body(const Body& body, Tensors arguments, int64_t iteration);

  // A tensor of others, and one in its memory whose references only this frame counts.
  struct Own {
    at::Tensor shared;
    at::Tensor own;
  };

  const Segment& segment_;
  const bool is_first_lane_;
  const std::vector<Instruction> own_instructions_;  // empty on the first lane
  std::vector<Own> own_;                             // by register, likewise
  const bool checks_floating_point_;
  const HostCaller call_host_;
  const SumAccess sums_;
  Tensors registers_;
  torch::jit::Stack stack_;
  bool has_threads_ = false;  // an operation may run on several

  // Of the present run, for messages: within which iterations and branches it is.
  int64_t micro_batch_ = 0;
  int64_t replica_ = 0;
  std::vector<std::string> trail_;
};

}  // namespace poptorch_emu
