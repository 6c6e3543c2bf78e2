#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

#include <functional>
#include <string>
#include <vector>

#include "numerics/gemm/product.h"
#include "numerics/row_summands.h"
#include "program/program.h"
#include "runtime/memory/shards.h"

namespace poptorch_emu {

// Calls a host function by its name. It may wait for the thread that makes such calls.
using HostCaller =
    std::function<std::vector<at::Tensor>(const std::string&, std::vector<at::Tensor>)>;

// Functions through which instructions use the sums of gradients.
struct SumAccess {
  // Adds the product of two matrices to a sum, as the contribution of a micro-batch.
  std::function<void(AccumulatorId, int64_t micro_batch, const Product&)> add_product;
  // Returns the summands of single rows of a sum in this window.
  std::function<const RowSummands&(AccumulatorId)> summands;
};

// Returns the micro-batches of an action as text, for messages.
std::string micro_batches_text(const Program& program, const Segment& segment, int64_t micro_batch);

// Runs a segment's instructions on one virtual IPU, on one thread at a time. Owns the registers.
//
// A segment has one frame for each lane. Frames other than the first have their own tensors and
// argument lists in the same memory. Otherwise two cores that change the reference count of a
// tensor would wait for each other each time.
class Frame {
 public:
  Frame(const Program& program, const Segment& segment, int64_t lane, HostCaller call_host,
        SumAccess sums, Replicas replicas);

  at::Tensor& operator[](RegisterId id) { return registers_[id.value]; }

  // Returns this frame's own tensor in the memory of a tensor that other frames may read in
  // parallel. It is kept for the next run, for the register that it fills wholly or in part.
  const at::Tensor& own(RegisterId id, const at::Tensor& shared);
  // Releases the own tensor of a register, unless it was made from `shared`.
  void forget(RegisterId id, const at::Tensor& shared = {});

  // Runs the instructions up to the next collective; returns true if none is left. Throws an
  // `Error` with the origin and the arguments of an instruction whose kernel fails, or that raises
  // a checked floating-point exception.
  bool run(int64_t micro_batch, int64_t replica);
  // Returns a copy of the replica's part for the collective at which the run has stopped.
  at::Tensor part() const;
  // Continues after the collective, with the parts of all replicas or their result.
  bool resume(std::vector<at::Tensor> parts);

  // Clears all registers.
  void clear();

 private:
  using Tensors = std::vector<at::Tensor>;

  const std::vector<Instruction>& code() const {
    return is_first_lane_ ? segment_.instructions : own_instructions_;
  }
  bool run_to_collective();
  void run_code(const std::vector<Instruction>& code, Tensors& registers, torch::jit::Stack& stack);
  void run_instruction(const Instruction& instruction, Tensors& registers,
                       torch::jit::Stack& stack);
  void execute(const Instruction& instruction, Tensors& registers, torch::jit::Stack& stack);
  [[noreturn]] void fail(const Instruction& instruction, const Tensors& registers,
                         const std::string& cause) const;

  void run_add_product(const Instruction& instruction, torch::jit::Stack& stack);
  void run_update_rows(const Instruction& instruction, torch::jit::Stack& stack);
  void run_collective(const Instruction& instruction, torch::jit::Stack& stack);
  void run_own_piece(torch::jit::Stack& stack) const;
  // Defined in control.cpp. Each function replaces the arguments on the stack by a list of results.
  void run_for_loop(const Instruction& instruction, torch::jit::Stack& stack);
  void run_cond(const Instruction& instruction, torch::jit::Stack& stack);
  void run_host_call(torch::jit::Stack& stack);
  Tensors run_body(const Body& body, Tensors arguments, int64_t iteration);

  // A shared tensor, and this frame's own tensor in the same memory.
  struct Own {
    at::Tensor shared;
    at::Tensor own;
  };

  const Program& program_;
  const Segment& segment_;
  const bool is_first_lane_;
  const std::vector<Instruction> own_instructions_;  // empty on the first lane
  std::vector<Own> own_;                             // indexed by register; empty on the first lane
  const HostCaller call_host_;
  const SumAccess sums_;
  const Replicas replicas_;
  Tensors registers_;
  torch::jit::Stack stack_;
  bool has_threads_ = false;  // whether an operation may use several threads

  size_t next_ = 0;  // instruction at which a run has stopped
  Tensors parts_;    // parts of the collective that have arrived

  // For messages and collectives: the current run, and the iterations and branches that it is in.
  int64_t micro_batch_ = 0;
  int64_t replica_ = 0;  // index among the replicas here
  std::vector<std::string> trail_;
};

}  // namespace poptorch_emu
