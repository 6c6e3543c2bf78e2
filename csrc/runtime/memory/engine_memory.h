#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <utility>
#include <vector>

#include "program/program.h"
#include "runtime/memory/arena_plan.h"
#include "runtime/memory/block_pool.h"

namespace poptorch_emu {

// Block of memory for the computations of one worker. A worker runs one segment at a time, so that
// the memory plans of all segments share the block, which grows to the largest plan.
class Arena {
 public:
  // Returns a block of at least this size; the current one if it is large enough.
  const std::shared_ptr<Block>& block(int64_t num_bytes);
  // Leaves the current block to the tensors that still lie in it.
  void abandon() { block_.reset(); }
  int64_t num_bytes() const { return block_ == nullptr ? 0 : block_->num_bytes(); }

 private:
  std::shared_ptr<Block> block_;
};

// Assigns memory to the tensors of one segment on one replica.
//
// A segment makes the same allocations in each run, including those of kernels. The first run, on
// any lane and replica, is recorded and determines the plan for all of them. From then on, an
// allocation that is released within the run has a fixed place in the worker's arena. Allocations
// that outlive a run (links, accumulators, variables) come from the pool. A run may end with
// additional allocations that outlive it, for example for the outputs of a call. If a run makes
// other allocations than planned, or keeps tensors that others released, the pool serves these, and
// the lane records its next run.
//
// Used by one thread at a time. Any thread may release the tensors.
class SegmentMemory {
 public:
  SegmentMemory(std::shared_ptr<BlockPool> pool, std::shared_ptr<CommonPlan> common)
      : pool_(std::move(pool)), common_(std::move(common)) {}
  C10_DISABLE_COPY_AND_ASSIGN(SegmentMemory);

  // While a scope exists, large tensors that this thread creates are placed by the plan.
  class Scope {
   public:
    Scope(SegmentMemory& memory, Arena& arena);
    ~Scope();
    C10_DISABLE_COPY_AND_ASSIGN(Scope);

   private:
    SegmentMemory& memory_;
    SegmentMemory* const before_;
    const int num_exceptions_ = std::uncaught_exceptions();
  };

  // While a suspension exists, this thread allocates as outside of a scope. It is used for code
  // whose tensors may outlive the run.
  class Suspension {
   public:
    Suspension();
    ~Suspension();
    C10_DISABLE_COPY_AND_ASSIGN(Suspension);

   private:
    SegmentMemory* const before_;
  };

 private:
  friend class EngineAllocator;
  struct Header;

  void begin(Arena& arena);
  void end(bool has_failed);
  bool is_recording() const { return plan_ == nullptr && num_plans_ < kMostPlans; }
  void follow(std::shared_ptr<const ArenaPlan> plan);
  void* take(int64_t num_bytes);
  static void* put_before(void* start, Header header);
  static void give_back(void* data);

  // After this many failed plans, the pool serves all runs of the segment.
  static constexpr int64_t kMostPlans = 4;

  const std::shared_ptr<BlockPool> pool_;
  const std::shared_ptr<CommonPlan> common_;
  std::shared_ptr<const ArenaPlan> plan_;
  int64_t num_plans_ = 0;
  // Whether the tensor of each piece of the plan is alive. Tensors share this vector, because they
  // may outlive this object.
  std::shared_ptr<std::vector<std::atomic<char>>> is_live_;

  // State of the current run. The run's number is unique in this process.
  int64_t run_ = 0;
  Arena* arena_ = nullptr;
  std::shared_ptr<Block> block_;
  size_t next_piece_ = 0;
  bool is_as_planned_ = true;
  // Allocations so far in a recorded run, and the time on its clock.
  std::vector<Allocation> recorded_;
  int64_t clock_ = 0;
};

// Memory of all tensors that an executor's virtual IPUs create: an arena for each worker, with the
// plans of the segments, and a pool for tensors that outlive a run.
//
// The executor owns it, before all members that hold tensors. Each arena is used by its worker, and
// each lane of a segment by one worker at a time.
class EngineMemory {
 public:
  // A segment has as many lanes as there are workers; actions of one lane do not overlap.
  EngineMemory(const Program& program, int64_t num_replicas, int64_t num_workers);
  ~EngineMemory() { pool_->close(); }

  SegmentMemory::Scope open(SegmentId segment, int64_t replica, int64_t lane, int64_t worker);

  int64_t arena_bytes() const;
  int64_t pool_bytes() const { return pool_->num_bytes(); }
  // Returns null before the first run of the segment.
  std::shared_ptr<const ArenaPlan> plan(SegmentId segment) const {
    return plans_.at(segment.value)->get();
  }

 private:
  const std::shared_ptr<BlockPool> pool_ = std::make_shared<BlockPool>();
  std::vector<std::shared_ptr<CommonPlan>> plans_;  // indexed by segment
  // By segment, replica and lane; null before the first use.
  std::vector<std::vector<std::vector<std::unique_ptr<SegmentMemory>>>> segments_;
  std::vector<Arena> arenas_;  // indexed by worker
};

}  // namespace poptorch_emu
