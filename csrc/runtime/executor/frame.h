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

// Calls a function of the host by its name. It may wait for the thread that makes such calls.
using HostCaller =
    std::function<std::vector<at::Tensor>(const std::string&, std::vector<at::Tensor>)>;

// What instructions do with the sums of gradients.
struct SumAccess {
  // Adds the product of two matrices to a sum, as a micro-batch's part of it.
  std::function<void(AccumulatorId, int64_t micro_batch, const Product&)> add_product;
  // Returns what was added to single rows of a sum in this window.
  std::function<const RowSummands&(AccumulatorId)> summands;
};

// Names the micro-batches of an action, for messages.
std::string micro_batches_text(const Program& program, const Segment& segment, int64_t micro_batch);

// Runs the instructions of one segment on one virtual IPU. Owns the registers. Used by one thread
// at a time.
//
// A segment has a frame for each lane. All but the first have tensors and lists of arguments of
// their own in the same memory, since two cores that change the reference count of one tensor wait
// for each other each time.
class Frame {
 public:
  Frame(const Program& program, const Segment& segment, int64_t lane, HostCaller call_host,
        SumAccess sums, Replicas replicas);

  at::Tensor& operator[](RegisterId id) { return registers_[id.value]; }

  // Returns this frame's own tensor in the memory of one that other frames may read at the same
  // time. It is kept for the next run, for the register that it fills or of which it fills a part.
  const at::Tensor& own(RegisterId id, const at::Tensor& shared);
  // Lets go of the own tensor of a register, unless it was made of `shared`.
  void forget(RegisterId id, const at::Tensor& shared = {});

  // Runs the instructions up to the next collective; true if none is left. Throws `Error` with the
  // origin and the arguments of an instruction whose kernel fails, or raises a floating-point
  // exception where those are checked.
  bool run(int64_t micro_batch, int64_t replica);
  // What the replica gives to the collective before which it stopped, in memory of its own.
  at::Tensor part() const;
  // Goes on behind it, with the parts of all replicas, or what became of them.
  bool resume(std::vector<at::Tensor> parts);

  // Empties all registers.
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
  // In control.cpp. Each replaces the arguments on the stack by one list of results.
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
  std::vector<Own> own_;                             // by register, likewise
  const HostCaller call_host_;
  const SumAccess sums_;
  const Replicas replicas_;
  Tensors registers_;
  torch::jit::Stack stack_;
  bool has_threads_ = false;  // an operation may run on several

  size_t next_ = 0;  // the instruction before which a run with collectives has stopped
  Tensors parts_;    // that have arrived for it

  // For messages, and for collectives: the present run, and the iterations and branches that it is
  // in.
  int64_t micro_batch_ = 0;
  int64_t replica_ = 0;  // of those here
  std::vector<std::string> trail_;
};

}  // namespace poptorch_emu
