#include "runtime/memory/engine_memory.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <cstring>

#include "runtime/memory/small_blocks.h"

namespace poptorch_emu {
namespace {

// Size of the header: two cache lines, so that the tensor after it is aligned like PyTorch's own.
constexpr int64_t kHeaderBytes = 128;

thread_local SegmentMemory* current = nullptr;  // memory of this thread's scope
std::atomic<int64_t> num_threads = 0;
// Number of this thread's last run; its upper bits are the number of the thread.
thread_local int64_t last_run = 0;
c10::DeleterFnPtr outside_raw_deleter = nullptr;

int64_t next_run() {
  if (last_run == 0) last_run = ++num_threads << 40;
  return ++last_run;
}

// Reports memory to PyTorch's profiler, so that it counts the engine's tensors like PyTorch's own.
void report(void* data, int64_t num_bytes) {
  if (!c10::memoryProfilingEnabled()) return;
  c10::reportMemoryUsageToProfiler(data, num_bytes, 0, 0, at::Device(at::kCPU));
}

}  // namespace

// Says how to release the piece of memory directly after it. Either `block` or `flags` is set.
struct SegmentMemory::Header {
  // Block and pool, for memory from the pool.
  std::unique_ptr<Block> block = nullptr;
  std::shared_ptr<BlockPool> pool = nullptr;
  // Flags and arena block, for memory from the arena.
  std::shared_ptr<std::vector<std::atomic<char>>> flags = nullptr;
  std::shared_ptr<Block> arena = nullptr;
  int64_t num_bytes = 0;  // requested size
  // Run that allocated the memory, or 0 if its release is not recorded, and its index in that run.
  int64_t run = 0;
  size_t piece = 0;
};

const std::shared_ptr<Block>& Arena::block(int64_t num_bytes) {
  if (block_ == nullptr || block_->num_bytes() < num_bytes) {
    block_.reset();
    block_ = std::make_shared<Block>(num_bytes);
  }
  return block_;
}

SegmentMemory::Scope::Scope(SegmentMemory& memory, Arena& arena)
    : memory_(memory), before_(current) {
  memory_.begin(arena);  // If this throws, there is no scope.
  current = &memory_;
}

SegmentMemory::Scope::~Scope() {
  current = before_;
  memory_.end(std::uncaught_exceptions() > num_exceptions_);
}

SegmentMemory::Suspension::Suspension() : before_(std::exchange(current, nullptr)) {}

SegmentMemory::Suspension::~Suspension() { current = before_; }

void SegmentMemory::begin(Arena& arena) {
  run_ = next_run();
  arena_ = &arena;
  next_piece_ = 0;
  is_as_planned_ = true;
  if (num_plans_ == 0) follow(common_->get());
  if (plan_ != nullptr && plan_->num_bytes > 0) block_ = arena.block(plan_->num_bytes);
}

void SegmentMemory::end(bool has_failed) {
  block_.reset();
  if (is_recording()) {
    const std::vector<Allocation> allocations = std::exchange(recorded_, {});
    clock_ = 0;
    if (has_failed) return;
    follow(std::make_shared<const ArenaPlan>(allocations));
    common_->set(plan_);
    pool_->trim();  // Most of the run's memory has a place in the arena from now on.
    return;
  }
  if (plan_ == nullptr) return;
  const bool is_kept = std::any_of(is_live_->begin(), is_live_->end(),
                                   [](const std::atomic<char>& flag) { return flag.load(); });
  if (is_kept) arena_->abandon();
  if (is_kept || !is_as_planned_ || !plan_->may_end_at(next_piece_)) plan_.reset();
}

void SegmentMemory::follow(std::shared_ptr<const ArenaPlan> plan) {
  if (plan == nullptr) return;
  ++num_plans_;
  is_live_ = std::make_shared<std::vector<std::atomic<char>>>(plan->pieces.size());
  plan_ = std::move(plan);
}

void* SegmentMemory::take(int64_t num_bytes) {
  static_assert(sizeof(Header) <= kHeaderBytes);
  Header header;
  header.num_bytes = num_bytes;
  num_bytes += kHeaderBytes;
  const size_t index = next_piece_++;
  if (is_recording()) {
    recorded_.push_back({clock_++, ArenaPlan::kEndOfRun, num_bytes});
    header.run = run_;
    header.piece = index;
  } else if (plan_ != nullptr && index >= plan_->pieces.size()) {
    header.run = run_;  // The memory may outlive the run; otherwise the plan is wrong.
  } else if (plan_ != nullptr && is_as_planned_) {
    const std::vector<ArenaPlan::Piece>& pieces = plan_->pieces;
    is_as_planned_ = pieces[index].allocation.num_bytes == num_bytes;
    const bool has_place = is_as_planned_ && pieces[index].offset >= 0;
    std::vector<std::atomic<char>>& flags = *is_live_;
    const auto is_taken = [&flags](int32_t piece) {
      return flags[piece].load(std::memory_order_acquire) != 0;
    };
    if (has_place && !is_taken(static_cast<int32_t>(index)) &&
        std::none_of(plan_->neighbours[index].begin(), plan_->neighbours[index].end(), is_taken)) {
      flags[index].store(1, std::memory_order_relaxed);
      header.flags = is_live_;
      header.arena = block_;
      header.piece = index;
      return put_before(static_cast<char*>(block_->data()) + pieces[index].offset,
                        std::move(header));
    }
    if (has_place) is_as_planned_ = false;
  }
  header.pool = pool_;
  header.block = pool_->take(num_bytes);
  void* const start = header.block->data();
  return put_before(start, std::move(header));
}

void* SegmentMemory::put_before(void* start, Header header) {
  void* const data = static_cast<char*>(start) + kHeaderBytes;
  report(data, header.num_bytes);
  new (start) Header(std::move(header));
  return data;
}

void SegmentMemory::give_back(void* data) {
  auto* const head = reinterpret_cast<Header*>(static_cast<char*>(data) - kHeaderBytes);
  Header header = std::move(*head);
  head->~Header();
  report(data, -header.num_bytes);
  if (header.flags != nullptr) {
    (*header.flags)[header.piece].store(0, std::memory_order_release);
    return;
  }
  // Here the memory is released within the run that allocated it.
  if (current != nullptr && header.run == current->run_) {
    if (current->is_recording()) {
      current->recorded_[header.piece].death = current->clock_++;
    } else {
      current->is_as_planned_ = false;
    }
  }
  header.pool->give_back(std::move(header.block));
}

class EngineAllocator final : public c10::Allocator {
 public:
  explicit EngineAllocator(c10::Allocator* outside) : outside_(outside) {
    outside_raw_deleter = outside->raw_deleter();
  }

  c10::DataPtr allocate(size_t num_bytes) override {
    if (current == nullptr || num_bytes == 0) return outside_->allocate(num_bytes);
    if (num_bytes < SmallBlocks::kMostBytes) {
      return c10::memoryProfilingEnabled() ? outside_->allocate(num_bytes)
                                           : SmallBlocks::take(static_cast<int64_t>(num_bytes));
    }
    void* const data = current->take(static_cast<int64_t>(num_bytes));
    return {data, data, &SegmentMemory::give_back, at::Device(at::kCPU)};
  }

  // Returns the function that releases raw memory, for example for oneDNN. It must also release
  // memory from PyTorch's own allocator.
  c10::DeleterFnPtr raw_deleter() const override {
    return [](void* data) {
      if (Block::holds(data)) {
        SegmentMemory::give_back(data);
      } else {
        outside_raw_deleter(data);
      }
    };
  }

  void copy_data(void* target, const void* source, size_t num_bytes) const override {
    std::memcpy(target, source, num_bytes);
  }

 private:
  c10::Allocator* const outside_;
};

// Lets the engine allocate the memory of tensors while a thread has a `Scope`. All other tensors
// are allocated as before. Only the first call in a process has an effect.
static void install_engine_allocator() {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  static EngineAllocator* const allocator = [] {
    auto* made = new EngineAllocator(c10::GetCPUAllocator());  // lives as long as the process
    c10::SetCPUAllocator(made, 1);
    return made;
  }();
  static_cast<void>(allocator);
#endif
}

EngineMemory::EngineMemory(const Program& program, int64_t num_replicas, int64_t num_workers)
    : segments_(program.segments.size()), arenas_(num_workers) {
  install_engine_allocator();
  for (auto& of_replica : segments_) {
    plans_.push_back(std::make_shared<CommonPlan>());
    of_replica.resize(num_replicas);
    for (auto& of_lane : of_replica) of_lane.resize(num_workers);
  }
}

SegmentMemory::Scope EngineMemory::open(SegmentId segment, int64_t replica, int64_t lane,
                                        int64_t worker) {
  std::unique_ptr<SegmentMemory>& memory = segments_[segment.value][replica][lane];
  if (!memory) memory = std::make_unique<SegmentMemory>(pool_, plans_[segment.value]);
  return {*memory, arenas_[worker]};
}

int64_t EngineMemory::arena_bytes() const {
  int64_t num_bytes = 0;
  for (const Arena& arena : arenas_) num_bytes += arena.num_bytes();
  return num_bytes;
}

}  // namespace poptorch_emu
