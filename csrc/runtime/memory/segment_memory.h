#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <utility>
#include <vector>

#include "runtime/memory/arena_plan.h"
#include "runtime/memory/block_pool.h"

namespace poptorch_emu {

// The memory in which one worker computes: one block, in which each segment has its own plan, since
// the worker runs one at a time. Grows to the largest plan.
class Arena {
 public:
  // Returns a block of at least this size, the same as before if that is large enough.
  const std::shared_ptr<Block>& block(int64_t num_bytes);
  // Leaves the present block to those who still hold a part of it.
  void abandon() { block_.reset(); }
  int64_t num_bytes() const { return block_ == nullptr ? 0 : block_->num_bytes(); }

 private:
  std::shared_ptr<Block> block_;
};

// Where the tensors of one segment of one replica lie.
//
// A segment does the same at each run, so that its first run on any lane or replica tells what it
// asks memory for, and until when: what the kernels themselves ask for included. What is released
// within the run gets a fixed place in the arena from then on; what lives on (links, accumulators,
// variables) comes from the pool. At its end a run may make other tensors that live on, as one does
// whose outputs the host gets. A run that asks for anything else, or keeps what others released, is
// served by the pool, and the lane looks anew. Used by one thread at a time; what it handed out may
// be released by any.
class SegmentMemory {
 public:
  SegmentMemory(std::shared_ptr<BlockPool> pool, std::shared_ptr<CommonPlan> common)
      : pool_(std::move(pool)), common_(std::move(common)) {}
  SegmentMemory(const SegmentMemory&) = delete;
  SegmentMemory& operator=(const SegmentMemory&) = delete;

  // While it exists, large tensors that this thread makes lie where the plan says.
  class Scope {
   public:
    Scope(SegmentMemory& memory, Arena& arena);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    SegmentMemory& memory_;
    SegmentMemory* const before_;
    const int num_exceptions_ = std::uncaught_exceptions();
  };

  // While it exists, this thread allocates as it does outside of the engine: what runs may keep
  // its tensors for good.
  class Suspension {
   public:
    Suspension();
    ~Suspension();
    Suspension(const Suspension&) = delete;
    Suspension& operator=(const Suspension&) = delete;

   private:
    SegmentMemory* const before_;
  };

 private:
  friend class EngineAllocator;
  struct Handed;

  void begin(Arena& arena);
  void end(bool has_failed);
  bool is_recording() const { return plan_ == nullptr && num_plans_ < kMostPlans; }
  void follow(std::shared_ptr<const ArenaPlan> plan);
  void* take(int64_t num_bytes);
  static void* put_before(void* start, Handed handed);
  static void give_back(void* data);

  // After so many plans that did not hold, the segment is left to the pool.
  static constexpr int64_t kMostPlans = 4;

  const std::shared_ptr<BlockPool> pool_;
  const std::shared_ptr<CommonPlan> common_;
  std::shared_ptr<const ArenaPlan> plan_;
  int64_t num_plans_ = 0;
  // By piece: whether its tensor lives. Shared with the tensors, which may outlive this object.
  std::shared_ptr<std::vector<std::atomic<char>>> is_live_;

  // Of the present run, whose number no other run in this process has.
  int64_t run_ = 0;
  Arena* arena_ = nullptr;
  std::shared_ptr<Block> block_;
  size_t next_piece_ = 0;
  bool is_as_planned_ = true;
  // Without a plan: what was asked for so far.
  std::vector<Allocation> recorded_;
  int64_t clock_ = 0;
};

// Has PyTorch ask the engine for the memory of tensors that a `Scope` is open for. All else, in
// other threads and outside of scopes, is allocated as before. Called once in a process.
void install_engine_allocator();

}  // namespace poptorch_emu
